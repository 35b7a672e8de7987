"""Room for tokens to come: who asks for blocks, and who could do without for a pass more.

Where a step is sent while a pass runs, room is asked for the token that comes of it; and, where memory is
plenty, for some more, so that the steps of the next passes can be left out (`engine/exchange.py`).
Tests: tests/engine/test_ahead.py, test_haste.py.
"""

from collections.abc import Iterable

from engine.requests import Stream, Work
from engine.scheduling.roster import Roster
from kvstore.client import BlockTables, operations
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["find_growth", "has_room"]


def find_growth(
    roster: Roster, tables: BlockTables, under_way: Work, spare_tokens: int, block_tokens: int
) -> Iterable[pb.Operation]:
    """What those who run ask for: none, or one operation for all. `spare_tokens`: of the answer, beyond what
    the pass under way gives."""
    ahead = _ahead(under_way)
    full = [stream for stream in roster.running if _lacks_room(stream, ahead, spare_tokens)]
    # Frames are given in this order: what is spare takes none from who can't go on without.
    full.sort(key=lambda stream: not _lacks_room(stream, ahead))
    if full:
        yield operations.grow(
            [stream.sequence for stream in full],
            [stream.room_needed(block_tokens, _to_come(stream, ahead, spare_tokens)) for stream in full],
            [len(tables.table(stream.sequence)) for stream in full],
        )


def has_room(roster: Roster, under_way: Work) -> bool:
    """Whether all who run have room for what comes of the pass under way."""
    ahead = _ahead(under_way)
    return not any(_lacks_room(stream, ahead) for stream in roster.running)


def _ahead(under_way: Work) -> set[Stream]:
    """Those who have one more token when it is over."""
    return {each for each in under_way.streams if each.tokens_pending == under_way.tokens_of(each)}


def _lacks_room(stream: Stream, ahead: set[Stream], spare_tokens: int = 0) -> bool:
    """For what comes of the pass under way, and so many tokens beyond."""
    return stream.room < len(stream.tokens) + _to_come(stream, ahead, spare_tokens)


def _to_come(stream: Stream, ahead: set[Stream], spare_tokens: int) -> int:
    """Of these tokens those that will be fed to the model: the last one of an answer is not."""
    if stream not in ahead or stream.takes_room_exactly:
        return 0
    last = len(stream.request.prompt) + stream.request.max_new_tokens - 1
    return max(min(1 + spare_tokens, last - len(stream.tokens)), 0)
