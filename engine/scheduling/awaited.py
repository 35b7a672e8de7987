"""Who waits a little, because another is just computing what its prompt begins with.

Prompts with the same beginning that come together, of which nothing is cached yet, would each compute it. So
one goes first, and the others come in when its blocks can be found: nobody is later for it, since prompts are
computed one after the other anyway. It is asked for the next blocks of the one in front alone, so a beginning
that is longer than what another computes doesn't hold anybody up, and one that is short is not waited for.
Tests: tests/engine/test_awaited.py.
"""

from collections.abc import Iterable

from engine.requests import Stream

__all__ = ["AWAITED_TOKENS", "found_for", "is_awaited"]

# At least so many tokens that need not be computed are waited for: half a chunk.
AWAITED_TOKENS = 128


def is_awaited(stream: Stream, others: Iterable[tuple[Stream, int]], block_tokens: int) -> bool:
    """Whether one of the others is to fill blocks that this prompt needs, and that can't be found yet.

    others  those who have memory, each with its leading blocks that can be found
    """
    findable = stream.findable_blocks(block_tokens)
    ahead = -(-AWAITED_TOKENS // block_tokens)
    for other, found in others:
        # A key says what stands in front of it too, so the last of these blocks stands for all.
        last = found + ahead - 1
        filled = len(other.request.prompt) // block_tokens
        if last < min(findable, filled) and stream.chain.keys[last] == other.chain.keys[last]:
            return True
    return False


def found_for(stream: Stream, others: Iterable[tuple[Stream, int]]) -> int:
    """Of its leading blocks so many can be found for sure: those that others have."""
    keys = stream.chain.keys
    known = [
        found
        for other, found in others
        if 0 < found <= len(keys) and keys[found - 1] == other.chain.keys[found - 1]
    ]
    return max(known, default=0)
