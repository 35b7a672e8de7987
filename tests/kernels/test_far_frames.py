"""Frames further in than 32 bits can count elements: the last ones of pools that are never touched elsewhere.

Such a pool is an address range; memory is taken for the pages that are written, and those are few.
"""

import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from kernels.copy_blocks import copy_blocks
from kernels.dequantize_blocks import dequantize_blocks
from kernels.gather_blocks import gather_blocks, scatter_blocks
from kernels.layout import KVLayout
from kernels.paged_attention_decode import paged_attention_decode
from kernels.paged_attention_prefill import paged_attention_prefill
from kernels.quantize_blocks import quantize_blocks
from kernels.quantized_layout import Quantization, QuantizedLayout
from kernels.store_kv import store_kv
from tests.kernels.contexts import assert_near, dense_attention

BLOCK_TOKENS, HEAD_DIM = 16, 64
LAYOUT = KVLayout(layers=1, kv_heads=1, head_dim=HEAD_DIM, block_tokens=BLOCK_TOKENS, dtype=torch.bfloat16)
BLOCK_ELEMENTS = LAYOUT.block_bytes // 2
# Not all systems' Python names it; the number is Linux's.
MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


@contextmanager
def far_pool(unit_bytes: int) -> Iterator[tuple[torch.Tensor, int]]:
    """A pool with eight frames behind 2^31 units of so many bytes, and the number of the first of these."""
    stride = LAYOUT.frame_stride_bytes
    first = 2**31 * unit_bytes // stride
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    try:
        mapped = mmap.mmap(-1, (first + 8) * stride, flags=flags)
    except OSError as error:
        pytest.skip(f"no room for an address range of {(first + 8) * stride} bytes: {error}")
    before = resident_bytes()
    yield torch.from_numpy(np.frombuffer(mapped, np.uint8).reshape(first + 8, stride)), first
    # Nobody has gone through it as a whole.
    assert resident_bytes() - before < 2**28


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def check_attention() -> None:
    """Written by store_kv, read by decode and prefill, through tables of 32 bits."""
    tokens, generator = 3 * BLOCK_TOKENS - 2, torch.Generator().manual_seed(1)
    kv = torch.randn(2, tokens, 1, HEAD_DIM, generator=generator).bfloat16()
    query = torch.randn(tokens, 2, HEAD_DIM, generator=generator).bfloat16()
    with far_pool(2) as (memory, first):
        layer = LAYOUT.view(memory)[:, 0]
        table = torch.tensor([[first + 6, 0, first + 1]], dtype=torch.int32)
        places = torch.arange(tokens)
        slots = table[0].long()[places // BLOCK_TOKENS] * BLOCK_TOKENS + places % BLOCK_TOKENS
        store_kv(layer, slots, kv[0], kv[1])
        assert torch.equal(layer[first + 6, 0], kv[0, :BLOCK_TOKENS])
        assert torch.equal(layer[first + 1, 1, :-2], kv[1, 2 * BLOCK_TOKENS :])

        expected = dense_attention(query, kv[0], kv[1])
        lens = torch.tensor([tokens])
        told = paged_attention_prefill(query, layer, table, torch.tensor([0, tokens]), lens, tokens)
        assert_near(told, expected, torch.bfloat16)
        told = paged_attention_decode(query[-1:], layer, table, lens, tokens)
        assert_near(told, expected[-1:], torch.bfloat16)


def check_copies() -> None:
    """Moved as words of four bytes, so the pool is twice as long."""
    with far_pool(4) as (memory, first):
        block = torch.arange(LAYOUT.block_bytes).to(torch.uint8)
        memory[first + 7] = block
        copy_blocks(memory, torch.tensor([first + 7]), torch.tensor([first + 2]), LAYOUT.block_bytes)
        assert torch.equal(memory[first + 2], block)
        staging = torch.zeros(2, LAYOUT.block_bytes, dtype=torch.uint8)
        gather_blocks(memory, torch.tensor([first + 2, 5]), staging, LAYOUT.block_bytes)
        assert torch.equal(staging[0], block)
        assert not staging[1].any()
        scatter_blocks(staging, torch.tensor([first, first + 7]), memory, LAYOUT.block_bytes)
        assert torch.equal(memory[first], block)
        assert not memory[first + 7].any()


def check_quantised() -> None:
    layout = QuantizedLayout(source=LAYOUT, quantization=Quantization.INT8)
    with far_pool(2) as (memory, first):
        pool = LAYOUT.view(memory)
        # Whole numbers up to 127, which INT8 holds as they are.
        pool[first + 3] = torch.arange(BLOCK_ELEMENTS).view(LAYOUT.shape) % 255 - 127
        staging = torch.zeros(1, layout.block_bytes, dtype=torch.uint8)
        quantize_blocks(pool, torch.tensor([first + 3]), torch.tensor([BLOCK_TOKENS]), staging, layout)
        dequantize_blocks(staging, torch.tensor([first + 5]), pool, layout)
        assert torch.equal(pool[first + 5], pool[first + 3])


@pytest.mark.parametrize("check", [check_attention, check_copies, check_quantised])
def test_pools_beyond_32_bits(check: Callable[[], None], interpreted):
    check()
    interpreted(check)
