"""Contexts in a paged pool, and attention over them written out in fp64."""

from collections.abc import Sequence

import torch

from kernels.layout import KVLayout

__all__ = ["TOLERANCE", "PagedContexts", "assert_near", "dense_attention"]

FRAMES, LAYERS, LAYER = 40, 3, 1
# Outputs are means of V, which is of the order of 1: what rounding of weights and outputs adds up to.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}


class PagedContexts:
    """Contexts of given lengths in scattered frames of a pool whose other bytes are NaN."""

    def __init__(
        self,
        lens: Sequence[int],
        kv_heads: int,
        head_dim: int,
        block_tokens: int,
        dtype: torch.dtype,
        layers: int = LAYERS,
    ) -> None:
        self.generator = torch.Generator().manual_seed(sum(lens) * 31 + block_tokens)
        layout = KVLayout(
            layers=layers, kv_heads=kv_heads, head_dim=head_dim, block_tokens=block_tokens, dtype=dtype
        )
        blocks = [-(-length // block_tokens) for length in lens]
        count = max(FRAMES, sum(blocks))
        memory = torch.full((count, layout.frame_stride_bytes), 255, dtype=torch.uint8)
        self.pool = layout.view(memory)
        self.lens = torch.tensor(lens, dtype=torch.int64)
        frames = torch.randperm(count, generator=self.generator).split([*blocks, count - sum(blocks)])
        self.tables = torch.zeros(len(lens), max(blocks, default=0) + 1, dtype=torch.int64)
        self.keys, self.values = [], []
        for row, length in enumerate(lens):
            self.tables[row, : blocks[row]] = frames[row]
            kv = self.draw(2, length, kv_heads, head_dim).to(dtype)
            tokens = torch.arange(length)
            places = frames[row][tokens // block_tokens], tokens % block_tokens
            self.layer[:, 0].index_put_(places, kv[0])
            self.layer[:, 1].index_put_(places, kv[1])
            self.keys.append(kv[0])
            self.values.append(kv[1])

    def draw(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator)

    @property
    def layer(self) -> torch.Tensor:
        return self.pool[:, min(LAYER, self.pool.shape[1] - 1)]


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
    torch.testing.assert_close(actual.double(), expected.double(), atol=TOLERANCE[dtype], rtol=0)
