"""The order in which blocks were used, for the disk to keep: after a restart the blocks that were used
longest ago are to go first, and not those that were written longest ago.

A use costs one call, and only where there is a disk tier. What is new is told now and then, in
batches of bounded size. A use that is told late, or never, makes a block look older: no more.
"""

import numpy as np

from kvstore.core.blocks import NO_ROWS, Blocks
from kvstore.core.types import DISK, Rows

__all__ = ["Recency"]

# How often what was used is looked through, which takes a millisecond for a million blocks.
ROUND_SECONDS = 2.0
# Blocks told at once, ten times a second: so a step has not to wait for longer than some milliseconds.
TOLD_MAX = 2_048
# Blocks looked at in one round; what is too much waits for the next.
ROUND_MAX = 32 * TOLD_MAX


class Recency:
    """Counts uses. Blocks that are used together have one number."""

    def __init__(self, blocks: Blocks, *, has_disk: bool) -> None:
        """Without a disk nothing is ever noted."""
        self._blocks = blocks
        # By row: its last use. Up to `_told` all have been told, or are about to be.
        self._used = np.zeros(blocks.capacity if has_disk else 0, np.int64)
        self._last = self._told = 0
        self._round = NO_ROWS
        self._next_round: float | None = None

    def note(self, rows: Rows) -> None:
        """These were used just now."""
        self._last += 1
        self._used[rows] = self._last

    def next(self, time: float) -> Rows:
        """What the disk is to be told now, used longest ago first, a child before its parent."""
        if not self._round.size:
            if self._last == self._told or (self._next_round is not None and time < self._next_round):
                return NO_ROWS
            self._next_round = time + ROUND_SECONDS
            self._begin_round()
        told, self._round = self._round[:TOLD_MAX], self._round[TOLD_MAX:]
        # Some may have gone since the round began.
        there: Rows = told[self._blocks.valid[DISK][told] & self._blocks.indexed[told]]
        return there

    def _begin_round(self) -> None:
        rows = np.flatnonzero((self._used > self._told) & self._blocks.valid[DISK])
        self._told = self._last
        used = self._used[rows]
        if rows.size > ROUND_MAX:
            self._told = int(np.partition(used, ROUND_MAX)[ROUND_MAX])
            rows, used = rows[used <= self._told], used[used <= self._told]
        self._round = rows[np.lexsort((-self._blocks.depth[rows], used))]
