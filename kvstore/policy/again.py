"""Of blocks that are used at one moment, those whose place in the table of ghosts an earlier chain has had.

What is found there is what that chain has left: of a block that both share, that it was used just now. So
such blocks are looked at in rounds, each behind those that its blocks rest on: as many rounds as chains share
a block. Mostly it is a common head, and here and there two blocks of which one takes the other's place.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from kvstore.core.types import Rows

__all__ = ["NOTHING_BEFORE", "Again", "find_again"]

# In so many slots it is looked which blocks may share a place: most of those that don't, share none.
SLOTS = 1 << 16
NOTHING_BEFORE = -1


class Again:
    """Places of blocks in their lot, and of each the last that has had its place before."""

    def __init__(self, blocks: Rows, before: Rows, rounds: NDArray[np.intp], size: int) -> None:
        """`rounds`: how many chains have had the place before, in rising order; `size`: of the lot."""
        self.blocks = blocks
        self.before = before
        self._ends = [*(np.flatnonzero(rounds[1:] != rounds[:-1]) + 1).tolist(), rounds.size]
        # By block of the lot, or NOTHING_BEFORE.
        self.before_any = np.full(size, NOTHING_BEFORE, np.intp)
        self.before_any[blocks] = before

    def rounds(self) -> Iterator[slice]:
        """Which of them make up each."""
        begin = 0
        for end in self._ends:
            yield slice(begin, end)
            begin = end


def find_again(places: NDArray[np.intp], chains: NDArray[np.intp]) -> Again | None:
    """By block: its place, and the number of its chain, which rises. None: each has a place of its own, but
    for those of one chain."""
    slots = places & (SLOTS - 1)
    blocks = np.flatnonzero(np.bincount(slots, minlength=SLOTS)[slots] > 1)
    blocks = blocks[np.argsort(places[blocks], kind="stable")]
    if not blocks.size:
        return None
    place, chain = places[blocks], chains[blocks]
    # Runs of blocks of one place and chain: all of a chain is looked for before any of it is put down.
    is_first = np.ones(blocks.size, np.bool_)
    is_first[1:] = place[1:] != place[:-1]
    begins = is_first.copy()
    begins[1:] |= chain[1:] != chain[:-1]
    starts = np.flatnonzero(begins)
    number = np.arange(starts.size)
    rounds = number - np.maximum.accumulate(number * is_first[starts])
    sizes = np.diff(starts, append=blocks.size)
    before, rounds = np.repeat(blocks[starts - 1], sizes), np.repeat(rounds, sizes)
    order = np.argsort(rounds, kind="stable")[np.count_nonzero(rounds == 0) :]
    return Again(blocks[order], before[order], rounds[order], places.size) if order.size else None
