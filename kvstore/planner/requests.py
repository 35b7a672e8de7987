"""A request of a trace, whatever format it was written in."""

from collections.abc import Iterator
from typing import Protocol

from msgspec import Struct

from kvstore.core.types import blocks_for_tokens

__all__ = ["Request", "Trace"]


class Request(Struct, frozen=True, kw_only=True, gc=False):
    """One prompt and its answer.

    Ids name blocks of `block_tokens` tokens, a number of the trace's own: the same number, the same tokens.
    An id may stand for its block alone or for all up to its end; both mean the same here, since a block
    counts as known only behind the blocks that it was seen behind before.
    """

    # Seconds, on the trace's own clock.
    time: float
    # Tokens of the prompt, 1 or more, and of the answer, 0 or more.
    input_tokens: int
    output_tokens: int
    # Of all blocks of the prompt, head first; the last one may be part-filled.
    block_ids: tuple[int, ...]
    # Of the blocks that the answer fills, from the one on that the prompt left part-filled. Empty where the
    # trace doesn't say: most don't.
    answer_ids: tuple[int, ...] = ()
    # The conversation that it belongs to. Empty where the trace doesn't say.
    session: str = ""
    turn: int = 0
    # What the request came from, in the trace's own words.
    kind: str = ""

    def full_blocks(self, block_tokens: int) -> int:
        """Blocks that the prompt fills."""
        return self.input_tokens // block_tokens

    def answered_blocks(self, block_tokens: int) -> int:
        """Blocks that prompt and answer fill together. The last token's KV is never computed."""
        return max(self.input_tokens, self.input_tokens + self.output_tokens - 1) // block_tokens

    def all_blocks(self, block_tokens: int) -> int:
        """Blocks that prompt and answer take, the last one perhaps part-filled."""
        return blocks_for_tokens(self.input_tokens + self.output_tokens, block_tokens)


class Trace(Protocol):
    """Requests in the order in which they were written down. May be read again and again."""

    @property
    def name(self) -> str: ...
    @property
    def block_tokens(self) -> int: ...
    def requests(self) -> Iterator[Request]: ...
