"""Prefill: reference and kernel, each against plain attention in fp64 over dense K and V."""

from itertools import product
from typing import Any

import pytest
import torch

from kernels.checks import KernelArgumentError
from kernels.paged_attention_prefill import paged_attention_prefill, plan_paged_attention_prefill
from tests.kernels.contexts import PagedContexts, assert_near, dense_attention

DTYPES = ["float32", "float16", "bfloat16"]
HEADS = [(2, 2), (4, 2), (3, 3), (5, 1), (8, 1)]
HEAD_DIMS = [64, 80, 96, 128, 256]
BLOCK_TOKENS = [8, 16, 32, 64]
CACHED_BLOCKS = [0, 1, 3]
# Blocks and tokens that are new behind so many cached blocks.
NEW_TOKENS = {0: [(0, 1), (1, 1)], 1: [(1, -1), (1, 0)], 3: [(0, 1), (1, -1), (0, 5)]}
GRID = [
    dict(zip(("dtype", "head_dim", "heads", "block_tokens", "cached_blocks"), case, strict=True))
    for case in product(DTYPES, HEAD_DIMS, HEADS, BLOCK_TOKENS, CACHED_BLOCKS)
]


def check_chunks(
    chunks: list[tuple[int, int]], dtype: str, heads: tuple[int, int], head_dim: int, block_tokens: int
) -> None:
    """Of sequences with so many cached and new tokens, in one batch."""
    query_heads, kv_heads = heads
    kind = getattr(torch, dtype)
    contexts = PagedContexts([sum(chunk) for chunk in chunks], kv_heads, head_dim, block_tokens, kind)
    lens = [new for _, new in chunks]
    query = contexts.draw(sum(lens), query_heads, head_dim).to(kind)
    starts = torch.tensor([0, *lens]).cumsum(0)

    output = paged_attention_prefill(
        query, contexts.layer, contexts.tables, starts, contexts.lens, max(lens, default=0)
    )

    rows = zip(query.split(lens), output.split(lens), contexts.keys, contexts.values, strict=True)
    for asked, told, key, value in rows:
        if len(asked):
            assert_near(told, dense_attention(asked, key, value), kind)


def check(dtype: str, head_dim: int, heads: tuple[int, int], block_tokens: int, cached_blocks: int) -> None:
    cached, lens = cached_blocks * block_tokens, NEW_TOKENS[cached_blocks]
    chunks = [(cached, new * block_tokens + more) for new, more in lens]
    check_chunks(chunks, dtype, heads, head_dim, block_tokens)


def test_frames_of_maximum_length(interpreted):
    """A context that lies in one frame, read there behind nothing and behind what is cached."""
    case: dict[str, Any] = {
        "chunks": [(0, 90), (90, 60), (0, 0)],
        "dtype": "float32",
        "heads": (4, 2),
        "head_dim": 32,
        "block_tokens": 192,
    }
    check_chunks(**case)
    interpreted(check_chunks, **case)


def test_reference(case):
    check(**case)


def test_kernel(case, interpreted):
    interpreted(check, **case)


BATCHES = {
    "long": [(0, 113), (256, 50), (250, 23), (312, 3)],
    "mixed": [(600, 1), (0, 70), (33, 0), (17, 5)],
    "one": [(40, 24)],
    "nothing new": [(16, 0), (3, 0)],
    "empty": [],
}


@pytest.mark.parametrize("chunks", BATCHES.values(), ids=BATCHES)
def test_batches(chunks, interpreted):
    case = {"chunks": chunks, "dtype": "float32", "heads": (3, 1), "head_dim": 64, "block_tokens": 16}
    check_chunks(**case)
    interpreted(check_chunks, **case)


@pytest.mark.parametrize("head_dim", [8, 24])
def test_small_heads(head_dim, interpreted):
    case = {"dtype": "bfloat16", "heads": (6, 2), "head_dim": head_dim, "block_tokens": 8, "cached_blocks": 3}
    check(**case)
    interpreted(check, **case)


def check_nothing_is_written() -> None:
    contexts = PagedContexts([5, 40], 2, 8, 16, torch.float32)
    before = contexts.pool.clone().view(torch.uint8)
    paged_attention_prefill(
        contexts.draw(9, 4, 8), contexts.layer, contexts.tables, torch.tensor([0, 2, 9]), contexts.lens, 7
    )
    assert torch.equal(contexts.pool.clone().view(torch.uint8), before)


def test_nothing_is_written(interpreted):
    check_nothing_is_written()
    interpreted(check_nothing_is_written)


def test_a_chunk_of_a_million_tokens_is_a_grid_that_a_gpu_takes():
    """Along its first axis a grid may have 2^31 programs, along the others 65,535 each."""
    tokens, frames = 1 << 20, 1 << 16

    def sized(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.empty(*shape, dtype=dtype, device="meta")

    query, layer = sized(tokens, 32, 128), sized(frames, 2, 16, 8, 128)
    tables, starts, lens = (sized(*shape, dtype=torch.int32) for shape in ((1, frames), (2,), (1,)))
    launch = plan_paged_attention_prefill(query, query, layer, tables, starts, lens, tokens)
    assert launch.grid[0] > 65535 >= max(launch.grid[1:])


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"query": torch.zeros(7, 4, 8, dtype=torch.float16)}, r"query is float16\[7, 4, 8\].*\.to\("),
        ({"query": torch.zeros(7, 3, 8)}, "query is of 3 heads, but must be a multiple of 2 KV heads"),
        ({"query": torch.zeros(7, 4, 16)[..., ::2]}, r"query is .* with strides .*contiguous\(\)"),
        ({"kv_layer": torch.zeros(6, 1, 16, 2, 8)}, "kv_layer is float32"),
        ({"block_tables": torch.zeros(2, 3, dtype=torch.int16)}, "block_tables is int16"),
        ({"block_tables": torch.zeros(2, 6, dtype=torch.int32)[:, ::2]}, "block_tables is .* with strides"),
        ({"query_starts": torch.zeros(2, dtype=torch.int64)}, r"query_starts is int64\[2\]"),
        ({"context_lens": torch.ones(2)}, "context_lens is float32"),
        ({"context_lens": torch.ones(2, dtype=torch.int32, device="meta")}, "context_lens is on meta"),
        ({"query_len_max": 8}, "query_len_max is 8, but must be from 0 to the 7 tokens"),
    ],
)
def test_what_cannot_be_taken_is_told(changes, told):
    good: dict[str, Any] = {
        "query": torch.zeros(7, 4, 8),
        "kv_layer": torch.zeros(6, 2, 16, 2, 8),
        "block_tables": torch.zeros(2, 3, dtype=torch.int64),
        "query_starts": torch.tensor([0, 3, 7]),
        "context_lens": torch.tensor([3, 20]),
        "query_len_max": 4,
    }
    paged_attention_prefill(**good)
    with pytest.raises(KernelArgumentError, match=f"paged_attention_prefill: .*{told}"):
        paged_attention_prefill(**(good | changes))
