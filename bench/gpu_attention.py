"""Decode attention as a share of what memory gives: it reads each K and V once, and computes next to nothing.

Memory's bandwidth is measured beside it, as a copy on the device whose bytes count as read and written.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from bench.gpu_place import Place
from bench.report import Row, make_row
from kernels.layout import KVLayout
from kernels.paged_attention_decode import paged_attention_decode

__all__ = ["measure"]

ROUNDS, ROUNDS_QUICK = 15, 3
SHARE_MIN = 0.80
TIMES = 10


@dataclass(frozen=True, slots=True)
class _Size:
    sequences: int
    context_tokens: int
    heads: int
    kv_heads: int
    head_dim: int
    copy_bytes: int


SERVED = _Size(32, 4096, 32, 8, 128, 2 << 30)
SMALL = _Size(2, 64, 4, 2, 16, 1 << 20)
BLOCK_TOKENS, LAYERS = 16, 4


@torch.inference_mode()
def measure(place: Place, quick: bool) -> Iterator[Row]:
    size = SERVED if place.is_gpu else SMALL
    attend, read_bytes = _attention(place, size)
    source = torch.ones(size.copy_bytes, dtype=torch.uint8, device=place.device)
    target = torch.empty_like(source)

    def copy() -> None:
        target.copy_(source)

    attend()
    copy()
    ours, memory = [], []
    for _ in range(ROUNDS_QUICK if quick else ROUNDS):
        ours.append(read_bytes / 1e9 / place.seconds(attend, TIMES))
        memory.append(2 * size.copy_bytes / 1e9 / place.seconds(copy, TIMES))
    name = f"decode attention, {size.sequences} x {size.context_tokens} tokens, {size.kv_heads} KV heads"
    yield make_row(
        f"{name} x {size.head_dim}, bf16 [a copy on the device]",
        "GB/s",
        ours,
        reference=memory,
        ratio_at_least=SHARE_MIN,
    )


def _attention(place: Place, size: _Size) -> tuple[Callable[[], object], int]:
    """One layer of a pool of several, in scattered frames; and the bytes that it has to read."""
    layout = KVLayout(
        layers=LAYERS,
        kv_heads=size.kv_heads,
        head_dim=size.head_dim,
        block_tokens=BLOCK_TOKENS,
        dtype=torch.bfloat16,
    )
    blocks = size.context_tokens // BLOCK_TOKENS
    frames = size.sequences * blocks
    memory = torch.zeros(frames, layout.frame_stride_bytes, dtype=torch.uint8, device=place.device)
    kv_layer = layout.view(memory)[:, 1]
    kv_layer.normal_()
    tables = torch.randperm(frames).to(torch.int32).view(size.sequences, blocks).to(place.device)
    lens = torch.full((size.sequences,), size.context_tokens, dtype=torch.int32, device=place.device)
    query = torch.randn(size.sequences, size.heads, size.head_dim).to(place.device, torch.bfloat16)
    read_bytes = kv_layer.numel() * kv_layer.dtype.itemsize
    return partial(paged_attention_decode, query, kv_layer, tables, lens, size.context_tokens), read_bytes
