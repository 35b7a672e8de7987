"""Decode: reference and kernel, each against plain attention in fp64 over dense K and V."""

from itertools import product
from typing import Any

import pytest
import torch

from kernels.checks import KernelArgumentError
from kernels.paged_attention_decode import paged_attention_decode
from tests.kernels.contexts import PagedContexts, assert_near, dense_attention

DTYPES = ["float32", "float16", "bfloat16"]
HEADS = [(2, 2), (6, 2), (9, 3), (5, 1), (20, 1)]
HEAD_DIMS = [64, 80, 96, 128, 256]
BLOCK_TOKENS = [8, 16, 32, 64]
# Longest contexts: of some blocks, and such that they are split and the splits merged.
LONG = ["blocks", "split"]
GRID = [
    dict(zip(("dtype", "head_dim", "heads", "block_tokens", "long"), case, strict=True))
    for case in product(DTYPES, HEAD_DIMS, HEADS, BLOCK_TOKENS, LONG)
]


def check(dtype: str, head_dim: int, heads: tuple[int, int], block_tokens: int, long: str) -> None:
    query_heads, kv_heads = heads
    few = [1, block_tokens - 1, block_tokens, block_tokens + 1, 3 * block_tokens + 5]
    lens = few if long == "blocks" else [block_tokens + 1, 600]
    kind = getattr(torch, dtype)
    contexts = PagedContexts(lens, kv_heads, head_dim, block_tokens, kind)
    query = contexts.draw(len(lens), query_heads, head_dim).to(kind)

    output = paged_attention_decode(query, contexts.layer, contexts.tables, contexts.lens, max(lens))

    expected = [
        dense_attention(*each) for each in zip(query.split(1), contexts.keys, contexts.values, strict=True)
    ]
    assert_near(output, torch.cat(expected), kind)


def test_reference(case):
    check(**case)


def test_kernel(case, interpreted):
    interpreted(check, **case)


@pytest.mark.parametrize(("head_dim", "heads"), [(8, (6, 2)), (24, (2, 1)), (64, (70, 1)), (16, (71, 1))])
def test_small_heads_and_many(head_dim, heads, interpreted):
    case = {"dtype": "bfloat16", "heads": heads, "head_dim": head_dim, "block_tokens": 16, "long": "blocks"}
    check(**case)
    interpreted(check, **case)


def check_long(length: int, index_type: str) -> None:
    contexts = PagedContexts([length, 3], 1, 32, 16, torch.float32)
    query = contexts.draw(2, 3, 32)
    kind = getattr(torch, index_type)
    output = paged_attention_decode(
        query, contexts.layer, contexts.tables.to(kind), contexts.lens.to(kind), length
    )
    for row in range(2):
        expected = dense_attention(query[row : row + 1], contexts.keys[row], contexts.values[row])
        assert_near(output[row : row + 1], expected, torch.float32)


@pytest.mark.parametrize(
    ("length", "index_type"),
    [(255, "int32"), (256, "int64"), (257, "int32"), (512, "int32"), (600, "int64"), (9000, "int32")],
)
def test_long_contexts_are_split_and_merged(length, index_type, interpreted):
    check_long(length, index_type)
    interpreted(check_long, length=length, index_type=index_type)


def check_padding(context_len_max: int) -> None:
    """Rows that fill up a batch of fixed size, and a maximum far beyond what is there."""
    contexts = PagedContexts([5, 40], 2, 16, 16, torch.float32)
    tables = torch.zeros(4, 200, dtype=torch.int32)
    tables[1, :3] = contexts.tables[1, :3]
    tables[3, :1] = contexts.tables[0, :1]
    query = contexts.draw(4, 4, 16)
    output = paged_attention_decode(
        query, contexts.layer, tables, torch.tensor([0, 40, 0, 5]), context_len_max
    )
    assert not output[[0, 2]].any()
    for row, context in ((1, 1), (3, 0)):
        expected = dense_attention(query[row : row + 1], contexts.keys[context], contexts.values[context])
        assert_near(output[row : row + 1], expected, torch.float32)


@pytest.mark.parametrize("context_len_max", [40, 48, 3200])
def test_batches_of_fixed_size(context_len_max, interpreted):
    check_padding(context_len_max)
    interpreted(check_padding, context_len_max=context_len_max)


def check_large_frames() -> None:
    """Each context in a frame of its own, as with a cache of maximum length: it is read there, and no NaN
    behind it, and nothing is written."""
    contexts = PagedContexts([1, 37, 384, 200], 2, 64, 384, torch.float32)
    tables, lens = contexts.tables[:, :1], torch.cat((contexts.lens, torch.tensor([0])))
    query = contexts.draw(5, 4, 64)
    before = contexts.pool.clone().view(torch.int32)
    output = paged_attention_decode(query, contexts.layer, torch.cat((tables, tables[:1])), lens, 384)
    expected = [
        dense_attention(*each)
        for each in zip(query[:4].split(1), contexts.keys, contexts.values, strict=True)
    ]
    assert_near(output[:4], torch.cat(expected), torch.float32)
    assert not output[4].any()
    assert torch.equal(contexts.pool.view(torch.int32), before)


def test_frames_of_maximum_length(interpreted):
    check_large_frames()
    interpreted(check_large_frames)


def check_nothing_is_written() -> None:
    contexts = PagedContexts([5, 40], 2, 8, 16, torch.float32)
    before = contexts.pool.clone().view(torch.uint8)
    paged_attention_decode(contexts.draw(2, 4, 8), contexts.layer, contexts.tables, contexts.lens, 40)
    assert torch.equal(contexts.pool.clone().view(torch.uint8), before)


def check_empty() -> None:
    contexts = PagedContexts([], 2, 8, 16, torch.float32)
    output = paged_attention_decode(
        contexts.draw(0, 4, 8), contexts.layer, contexts.tables, contexts.lens.long(), 0
    )
    assert output.shape == (0, 4, 8)


@pytest.mark.parametrize("checked", [check_nothing_is_written, check_empty])
def test_edges(checked, interpreted):
    checked()
    interpreted(checked)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"query": torch.zeros(2, 4, 8, dtype=torch.float64)}, r"query is float64\[2, 4, 8\].*\.to\("),
        ({"query": torch.zeros(2, 4, 9)}, r"query is float32\[2, 4, 9\], but must be of shape"),
        ({"query": torch.zeros(2, 5, 8)}, "query is of 5 heads, but must be a multiple of 2 KV heads"),
        ({"query": torch.zeros(2, 4, 16)[..., ::2]}, r"strides \[64, 16, 2\].*contiguous\(\)"),
        ({"kv_layer": torch.zeros(6, 2, 16, 2, 8, dtype=torch.float64)}, "kv_layer is float64"),
        ({"kv_layer": torch.zeros(6, 16, 2, 8)}, "kv_layer is float32"),
        ({"kv_layer": torch.zeros(6, 2, 2, 16, 8).transpose(2, 3)}, "kv_layer is .* with strides"),
        ({"kv_layer": torch.zeros(6, 2, 16, 2, 300)}, "head_dim from 1 to 256"),
        ({"kv_layer": torch.zeros(6, 2, 16, 2, 8, device="meta")}, "query is on cpu, but must be on meta"),
        ({"block_tables": torch.zeros(2, 3)}, "block_tables is float32"),
        ({"block_tables": torch.zeros(3, 3, dtype=torch.int32)}, "context_lens is int64.*3"),
        ({"context_lens": torch.zeros(3, dtype=torch.int32)}, "context_lens is int32"),
        ({"query": torch.zeros(3, 4, 8)}, "query is of 3 sequences, but must be one for each of the 2"),
        ({"context_len_max": 49}, "context_len_max is 49, but must be from 0 to the 48 tokens"),
        ({"context_len_max": -1}, "context_len_max is -1"),
    ],
)
def test_what_cannot_be_taken_is_told(changes, told):
    good: dict[str, Any] = {
        "query": torch.zeros(2, 4, 8),
        "kv_layer": torch.zeros(6, 2, 16, 2, 8),
        "block_tables": torch.zeros(2, 3, dtype=torch.int64),
        "context_lens": torch.ones(2, dtype=torch.int64),
        "context_len_max": 48,
    }
    paged_attention_decode(**good)
    with pytest.raises(KernelArgumentError, match=f"paged_attention_decode: .*{told}"):
        paged_attention_decode(**(good | changes))
