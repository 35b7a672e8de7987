"""Sequences on their way between the GPU and the tiers below: what follows when blocks move or are lost.

How they begin and end stands in `swaps_out.py` and `swaps_in.py`, who waits for what in `waiting.py`.
"""

from collections.abc import Callable, Collection

import numpy as np

from kvstore.core.blocks import NO_ROWS
from kvstore.core.config import StoreConfig
from kvstore.core.links import Links
from kvstore.core.memory import Memory
from kvstore.core.sequences import Sequence
from kvstore.core.swaps_in import SwapsIn
from kvstore.core.swaps_out import SwapsOut
from kvstore.core.transfers import Moved
from kvstore.core.tree import with_descendants
from kvstore.core.types import COPY, GPU, LOAD, READ, SWAPPING_IN, SWAPPING_OUT, WRITE, Rows, Tier

__all__ = ["Swaps"]


class Swaps:
    """Both ways, and the ends of transfers."""

    def __init__(
        self, config: StoreConfig, memory: Memory, links: Links, moved: Callable[[Sequence], None]
    ) -> None:
        self._config = config
        self._memory = memory
        self._links = links
        # Told each sequence whose state has changed other than in the answer to its engine.
        self._moved = moved
        self.waiting = links.waiting
        self.out = SwapsOut(config, memory, links, self.waiting, moved)
        self.into = SwapsIn(config, memory, links, self.waiting, self.out)

    def deny(self, rows: Rows) -> None:
        """Whoever waits for these on the GPU is not to have them: as if their loads had failed."""
        self._serve(GPU, rows, failed=True)

    def cut(self, sequence: Sequence, lost: Collection[int]) -> None:
        """Of the blocks that a swap keeps for the sequence, these are there no more."""
        first = next(place for place, row in enumerate(sequence.claimed) if row in lost)
        if sequence.state is SWAPPING_OUT:
            failed = sequence.first_failed
            sequence.first_failed = first if failed is None else min(first, failed)
        elif sequence.state is SWAPPING_IN:
            # What has come is on the GPU; for the rest it waits.
            self.deny(np.array([row for row in sequence.claimed if row in lost], np.intp))
        else:
            self.shorten(sequence, first)

    def shorten(self, sequence: Sequence, count: int) -> None:
        """Of a swapped sequence only so many leading blocks are kept; the rest is to be computed again."""
        gone = np.array(sequence.claimed[count:], np.intp)
        sequence.rows, sequence.claimed = sequence.rows[:count], sequence.claimed[:count]
        sequence.filled_tokens = min(sequence.filled_tokens, count * self._config.block_tokens)
        self._memory.blocks.unclaim(gone)
        self._memory.collect(gone)

    def end(self, moved: Moved) -> None:
        """A transfer has ended: serves those who waited, asks for the next leg of the way."""
        blocks, link = self._memory.blocks, moved.link
        tier, good, bad = link[1], moved.good, moved.bad
        if link in (LOAD, READ):
            # Whoever waits for these, waits for them on the GPU: a read is half of the way.
            tier = GPU
            bad = np.union1d(bad, self.lose(bad))
            bad = np.union1d(bad, self._give_up(moved.late))
        if link == READ:
            self._links.ask(LOAD, good[blocks.unfilled(good)].tolist())
            good = NO_ROWS
        elif link == COPY:
            self._links.ask_down(WRITE, good[blocks.to_disk[good]])
        self._serve(tier, good, failed=False)
        self._serve(tier, bad, failed=True)
        self._memory.collect(np.concatenate([moved.good, bad]))

    def refuse(self, rows: Rows) -> None:
        """These blocks can't be read from disk now: who waits for them goes on without."""
        self.go_without(self._give_up(rows))

    def go_without(self, rows: Rows) -> None:
        """These blocks will not come: who waits for them goes on with what stands before them."""
        self._serve(GPU, rows, failed=True)
        self._memory.collect(rows)

    def _give_up(self, rows: Rows) -> Rows:
        """These blocks don't come, and are not lost either. Returns them and, of what hangs on them, what
        is not on its way: of use to nobody who waits for both."""
        if not rows.size:
            return rows
        blocks = self._memory.blocks
        below = with_descendants(self._memory.blocks, rows)
        return np.union1d(rows, below[blocks.unfilled(below) & (blocks.pins[GPU][below] == 0)])

    def lose(self, rows: Rows) -> Rows:
        """The content of these blocks is lost: no one may find them, or what hangs on them, again.

        Returns those of them, and of what hangs on them, that will not be filled any more.
        """
        blocks, doomed = self._memory.blocks, self._memory.forget(rows)
        idle = blocks.pins[GPU][doomed] == 0
        unfilled: Rows = doomed[blocks.unfilled(doomed) & idle]
        return unfilled

    def _serve(self, tier: Tier, rows: Rows, *, failed: bool) -> None:
        for sequence in self.waiting.serve(tier, rows, failed=failed):
            self._finish(sequence)

    def _finish(self, sequence: Sequence) -> None:
        """The sequence's last row has moved, or will not."""
        if sequence.state is SWAPPING_IN:
            self.into.finish(sequence)
        elif sequence.begun:
            self.out.finish(sequence)
        else:
            return
        self._moved(sequence)
