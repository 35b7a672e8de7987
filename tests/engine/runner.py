"""A model over a pool of its own, the same weights in `transformers`, and what must be equal."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from bench.reference_transformers import to_transformers
from engine.batch import Batch
from engine.config import ModelConfig
from engine.model import Llama
from engine.weights import Weights

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

__all__ = [
    "BLOCK_TOKENS",
    "GQA",
    "HIT_TOLERANCE",
    "LOGITS_TOLERANCE",
    "MHA",
    "MQA",
    "PREFILL_GRID",
    "Runner",
    "TINY",
    "assert_equal_steps",
    "assert_hits_change_nothing",
    "assert_same_chunks_give_same_bytes",
    "continue_with_transformers",
    "hit_lengths",
    "to_transformers",
]

BLOCK_TOKENS = 16
PREFILL_GRID = 256
LOGITS_TOLERANCE = 1e-3
HIT_TOLERANCE = 1e-4
MHA = ModelConfig(
    vocab_size=199,
    hidden_size=48,
    intermediate_size=80,
    layers=3,
    heads=4,
    kv_heads=4,
    head_dim=12,
    context_length=2048,
    rope_theta=1e4,
    rms_norm_eps=1e-5,
)
GQA = replace(MHA, hidden_size=60, intermediate_size=112, layers=2, heads=6, kv_heads=2, head_dim=16)
MQA = replace(MHA, hidden_size=40, intermediate_size=72, layers=4, heads=5, kv_heads=1, head_dim=32)
TINY = [MHA, GQA, MQA]


class Runner:
    """A model over a pool of its own whose bytes start as NaN; sequences take scattered frames."""

    def __init__(self, weights: Weights, frames: int = 200) -> None:
        self.model = Llama(weights)
        self.layout = weights.config.kv_layout(block_tokens=BLOCK_TOKENS, dtype=weights.dtype)
        self.memory = np.full((frames, self.layout.frame_stride_bytes), 255, np.uint8)
        self.pool = self.layout.view(self.memory)
        self.free = np.random.default_rng(0).permutation(frames).tolist()

    def take_table(self, tokens: int) -> list[int]:
        return [self.free.pop() for _ in range(-(-tokens // BLOCK_TOKENS))]

    def prefill(self, ids: Sequence[int], table: list[int], cached: int = 0) -> torch.Tensor:
        """Computes all tokens after the cached ones, in chunks on the grid; fp32[vocab] of the last."""
        while cached < len(ids):
            end = min(len(ids), (cached // PREFILL_GRID + 1) * PREFILL_GRID)
            batch = Batch.prefill(
                ids[cached:end], cached=cached, block_table=table, block_tokens=BLOCK_TOKENS
            )
            logits = self.model.forward(batch, self.pool)
            cached = end
        return logits[0]

    def decode(self, ids: list[int], lens: list[int], tables: list[list[int]]) -> torch.Tensor:
        width = max(map(len, tables))
        padded = np.array([table + [0] * (width - len(table)) for table in tables], dtype=np.int32)
        batch = Batch.decode(ids, context_lens=lens, block_tables=padded, block_tokens=BLOCK_TOKENS)
        return self.model.forward(batch, self.pool)

    def mix(
        self, ids: list[int], lens: list[int], tables: list[list[int]], chunk: Sequence[int], cached: int
    ) -> torch.Tensor:
        """A decode step of all but the last table, and a chunk that goes into that."""
        width = max(map(len, tables))
        padded = np.array([table + [0] * (width - len(table)) for table in tables], dtype=np.int32)
        batch = Batch.mixed(
            ids, chunk, context_lens=lens, cached=cached, block_tables=padded, block_tokens=BLOCK_TOKENS
        )
        return self.model.forward(batch, self.pool)

    def continue_greedily(self, ids: list[int], count: int) -> torch.Tensor:
        """fp32[count, vocab]: the logits of each of `count` greedy steps."""
        ids = list(ids)
        table = self.take_table(len(ids) + count)
        steps = [self.prefill(ids, table)]
        while len(steps) < count:
            ids.append(int(steps[-1].argmax()))
            steps.append(self.decode(ids[-1:], [len(ids)], [table])[0])
        return torch.stack(steps)

    def frames_of(self, table: list[int], blocks: int) -> np.ndarray:
        return self.memory[table[:blocks], : self.layout.block_bytes].copy()


@torch.inference_mode()
def continue_with_transformers(model: "LlamaForCausalLM", ids: list[int], count: int) -> torch.Tensor:
    output = model.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
        max_new_tokens=count,
        do_sample=False,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return torch.cat(output.logits)


def assert_equal_steps(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert torch.equal(ours.argmax(-1), theirs.argmax(-1))
    torch.testing.assert_close(ours, theirs, atol=LOGITS_TOLERANCE, rtol=0)


def hit_lengths(ids: list[int]) -> range:
    """In blocks, each that a hit can have."""
    return range(1, (len(ids) - 1) // BLOCK_TOKENS + 1)


def assert_hits_change_nothing(runner: Runner, ids: list[int], lengths: Iterable[int]) -> None:
    """CASES.md 1.06: logits after cached prefixes of these lengths in blocks, and without one."""
    table = runner.take_table(len(ids))
    plain = runner.prefill(ids, table)
    for blocks in lengths:
        # Frames of its own after the hit, as a second sequence would have.
        mark = len(runner.free)
        hit = table[:blocks] + runner.take_table(len(ids) - blocks * BLOCK_TOKENS)
        logits = runner.prefill(ids, hit, cached=blocks * BLOCK_TOKENS)
        torch.testing.assert_close(logits, plain, atol=HIT_TOLERANCE, rtol=0)
        runner.free += hit[blocks:]
        assert len(runner.free) == mark


def assert_same_chunks_give_same_bytes(runner: Runner, ids: list[int]) -> None:
    """The same prompt in other frames, its first chunk computed anew or found."""
    blocks = len(ids) // BLOCK_TOKENS
    tables = [runner.take_table(len(ids)) for _ in range(3)]
    tables[2][: PREFILL_GRID // BLOCK_TOKENS] = tables[0][: PREFILL_GRID // BLOCK_TOKENS]
    logits = [runner.prefill(ids, table) for table in tables[:2]]
    logits.append(runner.prefill(ids, tables[2], cached=PREFILL_GRID))
    frames = [runner.frames_of(table, blocks) for table in tables]
    assert np.array_equal(frames[0], frames[1])
    assert np.array_equal(frames[0], frames[2])
    assert torch.equal(logits[0], logits[1])
    assert torch.equal(logits[0], logits[2])
