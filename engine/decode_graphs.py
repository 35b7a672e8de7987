"""Decode steps as graphs: one launch for all kernels of a forward pass, by the size of the batch.

A decode step of a small model is hundreds of kernels of a few microseconds each, and launching them one by
one takes longer than they do. A graph is launched as one, but its shapes and addresses are fixed. So there is
one for each of a few batch sizes, with inputs of its own that stay where they are. A batch takes the smallest
that it fits; what rows are left over are empty, with no token to write and no context to read. Block tables
are as wide as a sequence can become. What doesn't fit is computed without a graph.

Captured when a size is first met, over one pool: with the pool they go. Tests:
tests/engine/test_decode_graphs.py, which run the same inputs without a GPU's graphs; no GPU has run it yet.
"""

from collections.abc import Callable

import torch

from engine.batch import Batch
from engine.gpu_stream import Stream
from engine.model import Llama

__all__ = ["ROWS_MAX", "DecodeGraphs"]

# The largest batch that has a graph.
ROWS_MAX = 256
# Rows of `_Inputs.columns`.
IDS, POSITIONS, SLOTS, LENS = range(4)
NO_SLOT = -1


class DecodeGraphs:
    """For one thread, within `Stream.run`. pool: `KVLayout.view`."""

    def __init__(self, model: Llama, pool: torch.Tensor, stream: Stream) -> None:
        self._model = model
        self._pool = pool
        self._stream = stream
        self._block_tokens = pool.shape[3]
        longest = -(-model.config.context_length // self._block_tokens)
        self._width = min(longest, pool.shape[0])
        self._capture = stream.make_capture()
        self._by_rows: dict[int, tuple[_Inputs, Callable[[], torch.Tensor]]] = {}

    def fits(self, batch: Batch) -> bool:
        count, blocks = batch.block_tables.shape
        return batch.is_decode and count <= ROWS_MAX and blocks <= self._width

    def forward(self, batch: Batch) -> torch.Tensor:
        """As `Llama.forward` of a batch that fits, which is in host memory. The result, fp32[sequences,
        vocab] on the device, holds until the next call."""
        rows = 1 << max(len(batch.token_ids) - 1, 0).bit_length()
        if rows not in self._by_rows:
            self._by_rows[rows] = self._make(rows)
        inputs, run = self._by_rows[rows]
        inputs.fill(batch, self._stream)
        return run()[: len(batch.token_ids)]

    def _make(self, rows: int) -> "tuple[_Inputs, Callable[[], torch.Tensor]]":
        """Inputs for so many sequences, all empty, and what computes them."""
        inputs = _Inputs(rows, self._width, self._stream.device)
        batch = inputs.batch(self._block_tokens)
        return inputs, self._capture(lambda: self._model.forward(batch, self._pool))


class _Inputs:
    """What a graph reads, and a batch is copied into: of `rows` sequences with tables of `width` blocks."""

    def __init__(self, rows: int, width: int, device: torch.device) -> None:
        self._rows = rows
        # int64[4, rows]: token ids, positions, slots, context lengths.
        self._columns = torch.zeros(4, rows, dtype=torch.int64, device=device)
        self._columns[SLOTS] = NO_SLOT
        # What an earlier batch has left is a frame number too, and beyond a context nothing is read.
        self._tables = torch.zeros(rows, width, dtype=torch.int32, device=device)
        self._starts = torch.arange(rows + 1, device=device)

    def batch(self, block_tokens: int) -> Batch:
        return Batch(
            token_ids=self._columns[IDS],
            positions=self._columns[POSITIONS],
            slot_mapping=self._columns[SLOTS],
            query_starts=self._starts,
            query_len_max=1,
            context_lens=self._columns[LENS],
            # Known when it is captured, so the most that may ever be.
            context_len_max=self._tables.shape[1] * block_tokens,
            block_tables=self._tables,
        )

    def fill(self, batch: Batch, stream: Stream) -> None:
        """Copied behind what was given before; `batch` is read now."""
        count, blocks = batch.block_tables.shape
        columns = stream.host_tensor(4, self._rows, dtype=torch.int64)
        columns.zero_()
        columns[SLOTS] = NO_SLOT
        for row, column in (
            (IDS, batch.token_ids),
            (POSITIONS, batch.positions),
            (SLOTS, batch.slot_mapping),
            (LENS, batch.context_lens),
        ):
            columns[row, :count] = column
        tables = stream.host_tensor(count, blocks, dtype=torch.int32)
        tables.copy_(batch.block_tables)
        self._columns.copy_(columns, non_blocking=True)
        self._tables[:count, :blocks].copy_(tables, non_blocking=True)
