"""Contexts copied out of their frames into contiguous memory, for the torch references of attention."""

import torch

__all__ = ["gather_context"]


def gather_context(
    kv_layer: torch.Tensor, block_tables: torch.Tensor, tokens: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The first `tokens` tokens of each table: K and V, each dtype[sequences, tokens, kv_heads, head_dim].

    kv_layer      dtype[frames, 2, block_tokens, kv_heads, head_dim]
    block_tables  int32 or int64 [sequences, blocks]
    """
    _, _, block_tokens, kv_heads, head_dim = kv_layer.shape
    sequences, blocks = block_tables.shape[0], -(-tokens // block_tokens)
    frames = block_tables[:, :blocks].flatten()
    key, value = (
        kv_layer[:, side]
        .index_select(0, frames)
        .view(sequences, blocks * block_tokens, kv_heads, head_dim)[:, :tokens]
        for side in (0, 1)
    )
    return key, value
