"""A request on its way through the engine."""

from collections.abc import Iterable

from msgspec import Struct

from kvstore.core.operations import Grow
from kvstore.core.types import SequenceId, blocks_for_tokens
from kvstore.planner.workload import Turn

__all__ = ["Served", "growth_of"]


class Served(Struct, eq=False, gc=False):
    """Times are of the machine; the sequence's id is the request's number, in the order of their coming."""

    id: SequenceId
    turn: Turn
    arrival: float
    # From when on it had frames, and what was found for it then and came.
    admitted: float = -1.0
    cached_tokens: int = 0
    first_token: float = -1.0
    end: float = -1.0
    # Tokens that it has asked room for, and leading blocks that were found or are committed.
    room: int = 0
    committed: int = 0
    # Leading tokens whose KV is written; and those that are to be before it decodes: the prompt, or what it
    # had when it was preempted.
    filled: int = 0
    target: int = 0
    # Since when it decodes without a pause, and a number for that: the end of an earlier one is void.
    decodes_since: float = 0.0
    decode: int = 0
    preemptions: int = 0

    @property
    def tokens_end(self) -> int:
        """Whose KV is written when the answer is whole: not the last one's."""
        return self.turn.input_tokens + max(0, self.turn.output_tokens - 1)

    def first_room(self, piece_tokens: int) -> int:
        """Prompt, and what of the answer is in the prompt's last piece."""
        pieces = blocks_for_tokens(self.turn.input_tokens, piece_tokens)
        return min(pieces * piece_tokens, self.tokens_end)

    def next_room(self, piece_tokens: int) -> int:
        """To the end of the piece that its next token is in: so it is asked for once a piece."""
        return min((self.room // piece_tokens + 1) * piece_tokens, self.tokens_end)

    def find_uncommitted(self, block_tokens: int) -> tuple[int, ...]:
        """Numbers of the blocks from `committed` on that are full, as far as the trace names them."""
        turn, first, full = self.turn, self.committed, self.filled // block_tokens
        size = len(turn.prompt)
        return turn.prompt[first:full] + turn.answer[max(0, first - size) : max(0, full - size)]


def growth_of(full: Iterable[Served], block_tokens: int, piece_tokens: int) -> Grow:
    """Room for the next piece of all these, of one block or more; who came first first."""
    growing = sorted(full, key=lambda served: served.id)
    return Grow(
        sequences=tuple([served.id for served in growing]),
        token_counts=tuple([served.next_room(piece_tokens) for served in growing]),
        known_blocks=tuple([blocks_for_tokens(served.room, block_tokens) for served in growing]),
    )
