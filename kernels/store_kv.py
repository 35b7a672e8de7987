"""Writing the K and V of new tokens into the frames of the pool.

Tests: tests/kernels/test_store_kv.py.
"""

import torch
import triton
import triton.language as tl

from kernels.checks import check_kv_layer, check_tensor
from kernels.launch import Launch, next_power_of_2, runs_kernel

__all__ = ["plan_store_kv", "store_kv", "store_kv_reference"]

NAME = "store_kv"
# Elements of a token that a program has at once.
TILE = 1024


def store_kv(
    kv_layer: torch.Tensor, slot_mapping: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> None:
    """Write one layer's K and V of `tokens` new tokens to their slots.

    kv_layer      dtype[frames, 2, block_tokens, kv_heads, head_dim]: one layer of the pool, a strided view
                  whose three last axes are contiguous. Written in place.
    slot_mapping  int64[tokens]: `frame * block_tokens + offset`, one slot for each token. Slots must be
                  distinct: the order of two writes to one slot is not defined. A token whose slot is below 0
                  is not written, so that a graph of fixed size serves fewer tokens. A slot beyond the pool is
                  refused on a CPU (IndexError); on a GPU, which nobody waits for, it is not written.
    key, value    dtype[tokens, kv_heads, head_dim], strides free but for the last axis; K is stored as it is,
                  so already rotated.

    No other byte of the pool changes: a frame may be shared with another sequence up to the slot before.
    Raises KernelArgumentError.
    """
    _check(kv_layer, slot_mapping, key, value)
    if runs_kernel(kv_layer.device):
        plan_store_kv(kv_layer, slot_mapping, key, value).run()
    else:
        store_kv_reference(kv_layer, slot_mapping, key, value)


def store_kv_reference(
    kv_layer: torch.Tensor, slot_mapping: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> None:
    """The same in torch."""
    is_kept = slot_mapping >= 0
    if not is_kept.all():
        slot_mapping, key, value = slot_mapping[is_kept], key[is_kept], value[is_kept]
    block_tokens = kv_layer.shape[2]
    frames, offsets = slot_mapping // block_tokens, slot_mapping % block_tokens
    kv_layer[:, 0].index_put_((frames, offsets), key)
    kv_layer[:, 1].index_put_((frames, offsets), value)


def plan_store_kv(
    kv_layer: torch.Tensor, slot_mapping: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> Launch:
    """One program for each token and side. It reads rows of a head each and writes them as one run."""
    frames, _, block_tokens, kv_heads, head_dim = kv_layer.shape
    dim = next_power_of_2(head_dim)
    heads_tile = min(next_power_of_2(kv_heads), max(1, TILE // dim))
    return Launch(
        kernel=_store_kv,
        grid=(len(slot_mapping), 2),
        arguments={
            "kv_ptr": kv_layer,
            "slots_ptr": slot_mapping,
            "key_ptr": key,
            "value_ptr": value,
            "slots": frames * block_tokens,
            "stride_frame": kv_layer.stride(0),
            "stride_side": kv_layer.stride(1),
            "stride_key_token": key.stride(0),
            "stride_key_head": key.stride(1),
            "stride_value_token": value.stride(0),
            "stride_value_head": value.stride(1),
        },
        constants={
            "BLOCK_TOKENS": block_tokens,
            "KV_HEADS": kv_heads,
            "HEAD_DIM": head_dim,
            "DIM": dim,
            "HEADS_TILE": heads_tile,
        },
        # So few that each thread has 16 bytes to write at once.
        warps=max(1, dim * heads_tile * kv_layer.dtype.itemsize // 512),
    )


@triton.jit
def _store_kv(
    kv_ptr,
    slots_ptr,
    key_ptr,
    value_ptr,
    slots,
    stride_frame,
    stride_side,
    stride_key_token,
    stride_key_head,
    stride_value_token,
    stride_value_head,
    BLOCK_TOKENS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    HEADS_TILE: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    side = tl.program_id(1)
    slot = tl.load(slots_ptr + token)
    if slot < 0 or slot >= slots:
        return
    source = key_ptr + token * stride_key_token
    stride_head = stride_key_head
    if side == 1:
        source = value_ptr + token * stride_value_token
        stride_head = stride_value_head
    # 64 bits: a pool has more elements than 32 can count.
    place = (slot // BLOCK_TOKENS) * stride_frame + (slot % BLOCK_TOKENS) * (KV_HEADS * HEAD_DIM)
    target = kv_ptr + place + side.to(tl.int64) * stride_side
    dims = tl.arange(0, DIM)
    for first in tl.static_range(0, KV_HEADS, HEADS_TILE):
        heads = first + tl.arange(0, HEADS_TILE)
        is_there = heads[:, None] < KV_HEADS
        if HEAD_DIM < DIM:
            is_there = is_there & (dims[None, :] < HEAD_DIM)
        row = tl.load(source + heads[:, None] * stride_head + dims[None, :], mask=is_there)
        tl.store(target + heads[:, None] * HEAD_DIM + dims[None, :], row, mask=is_there)


def _check(
    kv_layer: torch.Tensor, slot_mapping: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> None:
    check_kv_layer(NAME, kv_layer)
    device = kv_layer.device
    check_tensor(
        NAME, "slot_mapping", slot_mapping, shape=(None,), dtypes=(torch.int64,), device=device, dense_axes=1
    )
    shape, dtypes = (len(slot_mapping), *kv_layer.shape[3:]), (kv_layer.dtype,)
    check_tensor(NAME, "key", key, shape=shape, dtypes=dtypes, device=device, dense_axes=1)
    check_tensor(NAME, "value", value, shape=shape, dtypes=dtypes, device=device, dense_axes=1)
