"""The best that any order of eviction could do with a number of frames: Belady's, with bypass.

Of all blocks known so far those are kept that are read again soonest, and what comes in may be let go at once.
A block's parent is read whenever it is, so of equals the deeper one goes: then what is kept is always whole
prefixes, and the rule is the optimum for prefixes too. No time passes: a block is there for the request after
the one that computed it, and nothing is in flight.
"""

import heapq
from collections.abc import Sequence

__all__ = ["NEVER_AGAIN", "best_hits"]

NEVER_AGAIN = 1 << 62


def best_hits(prompts: Sequence[tuple[int, ...]], capacity: int, lasting: int = 0) -> int:
    """Blocks found, of `prompts` as numbers of their blocks, heads first, with room for `capacity` blocks.

    Numbers of blocks that hang on one another must not depend on the order of the prompts in any other way:
    a block has one parent. The first `lasting` prompts are read without being counted: a cache that is warm.
    """
    next_reads = _next_reads(prompts)
    kept: dict[int, int] = {}
    # The latest next read first, of these the deepest block. What was read since has an older entry, too.
    order: list[tuple[int, int, int]] = []
    hits = 0
    for number, prompt in enumerate(prompts):
        found = 0
        for block in prompt:
            if block not in kept:
                break
            found += 1
        hits += found if number >= lasting else 0
        for depth, (block, again) in enumerate(zip(prompt, next_reads[number], strict=True)):
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


def _next_reads(prompts: Sequence[tuple[int, ...]]) -> list[list[int]]:
    """Of each block of each prompt the number of the next prompt that reads it."""
    reads: dict[int, int] = {}
    found: list[list[int]] = []
    for number in range(len(prompts) - 1, -1, -1):
        prompt = prompts[number]
        found.append([reads.get(block, NEVER_AGAIN) for block in prompt])
        reads.update(dict.fromkeys(prompt, number))
    found.reverse()
    return found
