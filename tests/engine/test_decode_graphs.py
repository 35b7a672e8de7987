"""Batches in the inputs of a graph: what is left over of it neither reads nor writes, and changes nothing.

Without a GPU a graph is the same computation made anew over the same tensors.
"""

import random

import pytest
import torch

from engine.batch import Batch
from engine.decode_graphs import ROWS_MAX, DecodeGraphs
from engine.weights import random_weights
from tests.engine.late_stream import LateStream
from tests.engine.runner import BLOCK_TOKENS, GQA, Runner


class CountingStream(LateStream):
    """Captures are counted, and what they run."""

    def __init__(self) -> None:
        super().__init__(0)
        self.captured = self.replayed = 0

    def make_capture(self):
        def capture(compute):
            self.captured += 1
            compute()

            def replay() -> torch.Tensor:
                self.replayed += 1
                return compute()

            return replay

        return capture


class Decoding:
    """Sequences that have been prefilled, and a pool of which nothing else may change."""

    def __init__(self, count: int) -> None:
        draw = random.Random(count)
        self.runner = Runner(random_weights(GQA, seed=1), frames=300)
        self.stream = CountingStream()
        self.graphs = DecodeGraphs(self.runner.model, self.runner.pool, self.stream)
        self.lens = [draw.randrange(1, 90) for _ in range(count)]
        self.tables = [self.runner.take_table(length + 1) for length in self.lens]
        for length, table in zip(self.lens, self.tables, strict=True):
            self.runner.prefill([draw.randrange(GQA.vocab_size) for _ in range(length)], table)

    def batch(self, rows: list[int]) -> Batch:
        width = max(len(self.tables[row]) for row in rows)
        padded = [self.tables[row] + [0] * (width - len(self.tables[row])) for row in rows]
        return Batch.decode(
            [row % GQA.vocab_size for row in rows],
            context_lens=[self.lens[row] + 1 for row in rows],
            block_tables=padded,
            block_tokens=BLOCK_TOKENS,
        )


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 11])
def test_a_batch_in_a_graph_gives_the_logits_and_the_pool_that_it_gives_without(count):
    decoding = Decoding(12)
    runner, batch = decoding.runner, decoding.batch(list(range(count)))
    before = runner.memory.copy()
    expected = runner.model.forward(batch, runner.pool)
    written = runner.memory.copy()
    runner.memory[:] = before
    assert decoding.graphs.fits(batch)
    logits = decoding.graphs.forward(batch)
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
    changed = (runner.memory != before).any(axis=1)
    assert (changed == (written != before).any(axis=1)).all()
    assert changed.sum() == count


def test_one_graph_a_size_is_captured_once_and_what_an_earlier_batch_left_is_not_seen():
    decoding = Decoding(12)
    batches = [list(range(12)), [3, 1], [5], [7, 2, 9], [0, 11], list(range(4, 12)), [6]]
    for rows in batches:
        batch = decoding.batch(rows)
        expected = decoding.runner.model.forward(batch, decoding.runner.pool)
        torch.testing.assert_close(decoding.graphs.forward(batch), expected, atol=1e-4, rtol=0)
    # 16, 2, 1, 4, 8.
    assert decoding.stream.captured == 5
    assert decoding.stream.replayed == len(batches)


def test_what_has_no_graph_is_said_to_have_none():
    decoding = Decoding(1)
    prefill = Batch.prefill([1, 2], cached=0, block_table=[5], block_tokens=BLOCK_TOKENS)
    many = Batch.decode(
        [0] * (ROWS_MAX + 1),
        context_lens=[1] * (ROWS_MAX + 1),
        block_tables=[[0]] * (ROWS_MAX + 1),
        block_tokens=BLOCK_TOKENS,
    )
    wide = Batch.decode([0], context_lens=[1], block_tables=[[0] * 301], block_tokens=BLOCK_TOKENS)
    for batch in (prefill, many, wide):
        assert not decoding.graphs.fits(batch)
