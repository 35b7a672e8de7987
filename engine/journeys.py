"""When digests are taken and compared: as blocks go into the store's hands, and as they come back.

Tests: tests/engine/test_engine.py, test_ahead.py, test_left_out_drawn.py.
"""

from collections.abc import Iterable, Sequence

from engine.digests import Digests, Memory
from engine.requests import Stream
from kvstore.client import BlockTables
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["note_given", "compare_received"]


def note_given(
    digests: Digests,
    asked: Sequence[pb.Operation],
    tables: BlockTables,
    memory: Memory,
    block_tokens: int,
) -> None:
    """Before a step is sent: of the blocks that it publishes, and of last ones that it has swapped out."""
    for operation in asked:
        kind = operation.WhichOneof("kind")
        if kind == "commit":
            commit = operation.commit
            frames = tables.table(commit.sequence)[commit.first_block :][: len(commit.block_keys)]
            # One may have been dropped beside the pass that filled them: of that nothing is published.
            digests.note_commit(commit.block_keys[: len(frames)], frames, memory)
        elif kind == "swap" and operation.swap.direction == pb.SwapRequest.OUT:
            full, part = divmod(operation.swap.filled_tokens, block_tokens)
            if part:
                sequence = operation.swap.sequence
                digests.note_tail(sequence, tables.table(sequence)[full], memory)


def compare_received(
    digests: Digests,
    streams: Iterable[Stream],
    tables: BlockTables,
    memory: Memory,
    block_tokens: int,
) -> None:
    """Every block that has come back, before anything is computed from it."""
    for stream in streams:
        if stream.is_done:
            continue
        table = tables.table(stream.sequence)
        full, part = divmod(stream.computed, block_tokens)
        digests.compare(stream.chain.keys[:full], table[:full], memory)
        digests.compare_tail(stream.sequence, table[full : full + 1] if part else [], memory)
