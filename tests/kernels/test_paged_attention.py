"""Against plain attention in fp64 over dense K and V, written out here."""

import pytest
import torch

from kernels.layout import KVLayout
from kernels.paged_attention import paged_decode_attention, paged_prefill_attention

FRAMES, LAYERS, LAYER = 40, 3, 1
HEADS = [(4, 4, 16), (6, 2, 8), (9, 3, 64), (5, 1, 24)]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


class PagedContexts:
    """Contexts of given lengths in scattered frames of a pool whose other bytes are NaN."""

    def __init__(self, lens: list[int], kv_heads: int, head_dim: int, block_tokens: int, dtype: torch.dtype):
        self.generator = torch.Generator().manual_seed(sum(lens) * 31 + block_tokens)
        layout = KVLayout(
            layers=LAYERS, kv_heads=kv_heads, head_dim=head_dim, block_tokens=block_tokens, dtype=dtype
        )
        memory = torch.full((FRAMES, layout.frame_stride_bytes), 255, dtype=torch.uint8)
        self.pool = layout.view(memory)
        blocks = [-(-length // block_tokens) for length in lens]
        frames = iter(torch.randperm(FRAMES, generator=self.generator).tolist())
        self.tables = torch.zeros(len(lens), max(blocks) + 1, dtype=torch.int64)
        self.keys, self.values = [], []
        for row, (length, count) in enumerate(zip(lens, blocks, strict=True)):
            self.tables[row, :count] = torch.tensor([next(frames) for _ in range(count)])
            kv = self.draw(2, length, kv_heads, head_dim).to(dtype)
            for token in range(length):
                frame, offset = self.tables[row, token // block_tokens], token % block_tokens
                self.pool[frame, LAYER, :, offset] = kv[:, token]
            self.keys.append(kv[0])
            self.values.append(kv[1])

    def draw(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator)

    @property
    def layer(self) -> torch.Tensor:
        return self.pool[:, LAYER]


def dense_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Causal attention of the last `len(query)` tokens, fp64[tokens, heads, head_dim], one head at a time."""
    tokens, heads, head_dim = query.shape
    group = heads // key.shape[1]
    visible = torch.ones(tokens, len(key), dtype=torch.bool).tril(len(key) - tokens)
    outputs = []
    for head in range(heads):
        scores = query[:, head].double() @ key[:, head // group].double().T / head_dim**0.5
        weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
        outputs.append(weights @ value[:, head // group].double())
    return torch.stack(outputs, dim=1)


def assert_near(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    assert actual.dtype == dtype
    torch.testing.assert_close(actual.double(), expected, atol=TOLERANCE[dtype], rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("block_tokens", [8, 16, 32])
def test_decode(block_tokens, heads, dtype):
    query_heads, kv_heads, head_dim = heads
    lens = [1, block_tokens - 1, block_tokens, block_tokens + 1, 7 * block_tokens + 3]
    contexts = PagedContexts(lens, kv_heads, head_dim, block_tokens, dtype)
    query = contexts.draw(len(lens), query_heads, head_dim).to(dtype)

    output = paged_decode_attention(query, contexts.layer, contexts.tables, torch.tensor(lens), max(lens))

    expected = [
        dense_attention(*each) for each in zip(query.split(1), contexts.keys, contexts.values, strict=True)
    ]
    assert_near(output, torch.cat(expected), dtype)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 600])
def test_decode_of_a_single_sequence(length):
    contexts = PagedContexts([length], 3, 64, 16, torch.float32)
    query = contexts.draw(1, 9, 64)
    tables = contexts.tables.int()
    output = paged_decode_attention(query, contexts.layer, tables, torch.tensor([length]), length)
    assert_near(output, dense_attention(query, contexts.keys[0], contexts.values[0]), torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("block_tokens", [8, 16, 32])
@pytest.mark.parametrize("cached_blocks", [0, 1, 4])
def test_prefill(cached_blocks, block_tokens, heads, dtype):
    query_heads, kv_heads, head_dim = heads
    cached = cached_blocks * block_tokens
    for tokens in (1, block_tokens - 1, block_tokens, block_tokens + 1, 3 * block_tokens + 5):
        contexts = PagedContexts([cached + tokens], kv_heads, head_dim, block_tokens, dtype)
        query = contexts.draw(tokens, query_heads, head_dim).to(dtype)
        output = paged_prefill_attention(query, contexts.layer, contexts.tables[0], cached + tokens)
        assert_near(output, dense_attention(query, contexts.keys[0], contexts.values[0]), dtype)


@pytest.mark.parametrize(("cached", "tokens"), [(0, 513), (256, 256), (250, 263), (512, 3)])
def test_prefill_of_long_contexts(cached, tokens):
    contexts = PagedContexts([cached + tokens], 3, 64, 16, torch.float32)
    query = contexts.draw(tokens, 9, 64)
    output = paged_prefill_attention(query, contexts.layer, contexts.tables[0], cached + tokens)
    assert_near(output, dense_attention(query, contexts.keys[0], contexts.values[0]), torch.float32)


def test_nothing_is_written():
    contexts = PagedContexts([5, 40], 2, 8, 16, torch.float32)
    before = contexts.pool.clone().view(torch.uint8)
    paged_decode_attention(contexts.draw(2, 4, 8), contexts.layer, contexts.tables, torch.tensor([5, 40]), 40)
    paged_prefill_attention(contexts.draw(9, 4, 8), contexts.layer, contexts.tables[1], 40)
    assert torch.equal(contexts.pool.clone().view(torch.uint8), before)
