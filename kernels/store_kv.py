"""Writing the K and V of new tokens into the frames of the pool.

The torch reference; a Triton kernel with the same contract joins it here.
Tests: tests/kernels/test_store_kv.py.
"""

import torch

__all__ = ["store_kv"]


def store_kv(
    kv_layer: torch.Tensor, slot_mapping: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> None:
    """Write one layer's K and V of `tokens` new tokens to their slots.

    kv_layer      dtype[frames, 2, block_tokens, kv_heads, head_dim]: one layer of the pool, a strided view
                  whose three last axes are contiguous. Written in place.
    slot_mapping  int64[tokens]: `frame * block_tokens + offset`, one slot for each token. Slots must be
                  distinct (the order of two writes to one slot is not defined) and inside the pool.
    key, value    dtype[tokens, kv_heads, head_dim], strides free; K is stored as it is, so already rotated.

    No other byte of the pool changes: a frame may be shared with another sequence up to the slot before.
    """
    block_tokens = kv_layer.shape[2]
    frames, offsets = slot_mapping // block_tokens, slot_mapping % block_tokens
    kv_layer[:, 0].index_put_((frames, offsets), key)
    kv_layer[:, 1].index_put_((frames, offsets), value)
