"""Contexts in contiguous memory, for the torch references of attention: copied out of their frames there, or
read where they are if they lie in one frame each."""

import torch

__all__ = ["gather_context", "make_room"]


def gather_context(
    kv_layer: torch.Tensor, block_tables: torch.Tensor, tokens: int, room: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The first `tokens` tokens of each table: K and V, each dtype[sequences, tokens, kv_heads, head_dim].

    kv_layer      dtype[frames, 2, block_tokens, kv_heads, head_dim]
    block_tables  int32 or int64 [sequences, blocks]
    room          what `make_room` returned for as many sequences and tokens, or more; the result lies in it,
                  or for a single sequence whose context is in one frame, in that frame: not to be written to
    """
    _, _, block_tokens, kv_heads, head_dim = kv_layer.shape
    sequences, blocks = block_tables.shape[0], -(-tokens // block_tokens)
    if sequences == blocks == 1:
        frame = kv_layer[int(block_tables[0, 0]), :, None, :tokens]
        return frame[0], frame[1]
    frames = block_tables[:, :blocks].flatten()
    for side in (0, 1):
        torch.index_select(kv_layer[:, side], 0, frames, out=room[side, : len(frames)])
    shape = (sequences, blocks * block_tokens, kv_heads, head_dim)
    key, value = (room[side, : len(frames)].view(shape)[:, :tokens] for side in (0, 1))
    return key, value


def make_room(kv_layer: torch.Tensor, sequences: int, tokens: int) -> torch.Tensor:
    """Memory for the contexts of some sequences, to be used again for the next ones: new memory costs more
    than what is copied into it, as its pages have to be made."""
    blocks = sequences * -(-tokens // kv_layer.shape[2])
    return torch.empty(2, blocks, *kv_layer.shape[2:], dtype=kv_layer.dtype, device=kv_layer.device)
