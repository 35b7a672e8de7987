"""The best that any order of eviction could do with a number of frames: Belady's, with bypass.

Of all blocks known so far those are kept that are read again soonest, and what comes in may be let go at
once. A block's parent is read whenever it is, so of equals the deeper one goes: then what is kept is always
whole prefixes, and the rule is the optimum for prefixes too. No time passes: a block is there for the request
after the one that computed it, and nothing is in flight.
"""

import heapq
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Use", "best_hits"]

NEVER_AGAIN = 1 << 62


class Use(NamedTuple):
    """What a request looks for, head first, and what it leaves behind those: numbers of blocks, each with one
    parent always."""

    read: tuple[int, ...]
    left: tuple[int, ...] = ()


def best_hits(uses: Sequence[Use], capacity: int) -> int:
    """Blocks found, with room for `capacity` blocks. O(n log n) of all blocks that are named."""
    next_reads = _next_reads(uses)
    # Of each block that is kept, who reads it next.
    kept: dict[int, int] = {}
    # The latest next read first, of these the deepest block. What was read since has an older entry, too.
    order: list[tuple[int, int, int]] = []
    hits = 0
    for use, nexts in zip(uses, next_reads, strict=True):
        for block in use.read:
            if block not in kept:
                break
            hits += 1
        for depth, (block, again) in enumerate(zip((*use.read, *use.left), nexts, strict=True)):
            if again == NEVER_AGAIN:
                kept.pop(block, None)
            else:
                kept[block] = again
                heapq.heappush(order, (-again, -depth, block))
        while len(kept) > capacity:
            again, _, block = heapq.heappop(order)
            if kept.get(block) == -again:
                del kept[block]
    return hits


def _next_reads(uses: Sequence[Use]) -> list[list[int]]:
    """Of each block of each use, read or left, the number of the next use that reads it, unless it is left
    anew before that."""
    reads: dict[int, int] = {}
    found: list[list[int]] = []
    for number in range(len(uses) - 1, -1, -1):
        read, left = uses[number]
        found.append([reads.get(block, NEVER_AGAIN) for block in (*read, *left)])
        # What is left here comes for nothing: nobody has to keep it for later up to now.
        for block in left:
            reads.pop(block, None)
        reads.update(dict.fromkeys(read, number))
    found.reverse()
    return found
