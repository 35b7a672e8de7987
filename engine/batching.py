"""Work as a batch: the tokens of its streams, with the tables of their sequences.

Tests: tests/engine/test_engine.py, test_batch.py.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine.batch import Batch
from engine.requests import Stream, Work
from kvstore.client import BlockTables

__all__ = ["make_batch"]


def make_batch(work: Work, tables: BlockTables, block_tokens: int) -> Batch:
    """Single tokens at the front, the chunk behind them, as in `Work.streams`."""
    singles = [stream.tokens[stream.computed] for stream in work.decoded]
    context_lens = [stream.computed + 1 for stream in work.decoded]
    if not work.prefilled:
        padded = _pad_tables(work.decoded, tables)
        return Batch.decode(
            singles, context_lens=context_lens, block_tables=padded, block_tokens=block_tokens
        )
    [stream] = work.prefilled
    chunk = stream.tokens[stream.computed : stream.computed + work.chunk_tokens]
    if not work.decoded:
        table = tables.table(stream.sequence)
        return Batch.prefill(chunk, cached=stream.computed, block_table=table, block_tokens=block_tokens)
    return Batch.mixed(
        singles,
        chunk,
        context_lens=context_lens,
        cached=stream.computed,
        block_tables=_pad_tables(work.streams, tables),
        block_tokens=block_tokens,
    )


def _pad_tables(streams: Sequence[Stream], tables: BlockTables) -> npt.NDArray[np.int32]:
    frames = [tables.table(stream.sequence) for stream in streams]
    width = max(map(len, frames))
    # One array for the batch: a call into numpy for each sequence would cost more than the padding.
    return np.array([table + [0] * (width - len(table)) for table in frames], dtype=np.int32)
