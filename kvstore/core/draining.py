"""Before a restart: whatever can be found and has no copy on disk is asked to go there.

First what belongs to sessions, with all that it hangs on, as much as the disk holds; it may push out what
lies there and was used longest ago, as ever. Then what is only cached, as far as there is room on disk for
it. Heads of chains go first, since the most hangs on them. What a drain has asked for it does not push out
again for more, nor ask for once more when something else has: so it comes to an end.
"""

import numpy as np
from numpy.typing import NDArray

from kvstore.core.answers import DrainAnswer
from kvstore.core.blocks import NO_FRAME, Rows
from kvstore.core.config import StoreConfig
from kvstore.core.links import Links
from kvstore.core.memory import Memory
from kvstore.core.tree import with_ancestors, with_descendants
from kvstore.core.types import COPY, CPU, DISK, GPU, WRITE

__all__ = ["Draining"]

# At a time: what waits for a link has a bound, and others wait for it too.
ASKED_MAX = 16_384


class Draining:
    """Asked again and again it asks for more, for what has come since, and for what has failed."""

    def __init__(self, config: StoreConfig, memory: Memory, links: Links) -> None:
        self._config = config
        self._memory = memory
        self._links = links
        # By row: its generation when this drain asked for it, plus one; 0 where it has not.
        self._asked: NDArray[np.int64] | None = None

    def end(self) -> None:
        """The next one is another."""
        self._asked = None
        self._links.yielding.is_draining = False

    def write_down(self) -> None:
        """Nothing to do where there is no disk tier."""
        if not self._config.disk_frames:
            return
        blocks = self._memory.blocks
        self._links.yielding.is_draining = True
        if self._asked is None:
            self._asked = np.zeros(blocks.capacity, np.int64)
        rows = self._worth_keeping(self._asked == blocks.generation + np.int64(1))[:ASKED_MAX]
        self._asked[rows] = blocks.generation[rows] + np.int64(1)
        blocks.to_disk[rows], blocks.undecided[rows] = True, False
        self._links.ask_down(WRITE, rows[blocks.valid[CPU][rows]])
        self._links.ask_down(COPY, rows)

    def _worth_keeping(self, asked: NDArray[np.bool_]) -> Rows:
        """Of what is neither on disk nor being written, that which is to go there, in this order."""
        blocks, pool = self._memory.blocks, self._memory.pools[DISK]
        there = blocks.frame[DISK] != NO_FRAME
        # What was asked for and is wished for no more has been pushed out.
        lacking = self._keepable() & ~there & ~(asked & ~blocks.to_disk)
        # Lone sequences have negative numbers, and what nobody owns was found on disk once.
        wanted = np.zeros(blocks.capacity, np.bool_)
        wanted[with_ancestors(blocks, np.flatnonzero(lacking & (blocks.owner >= 0)))] = True
        ours = self._heads_first(np.flatnonzero(lacking & wanted))
        rest = self._heads_first(np.flatnonzero(lacking & ~wanted))
        ours = ours[: pool.frame_count - np.count_nonzero(there & asked)]
        room = max(0, pool.free_count - ours.size)
        return np.concatenate([ours, rest[:room]])

    def _keepable(self) -> NDArray[np.bool_]:
        """Whether each can be found and may be written: neither it nor what it hangs on is to go."""
        blocks = self._memory.blocks
        unwanted = np.flatnonzero(blocks.unwanted)
        keepable = blocks.indexed.copy()
        if unwanted.size:
            keepable[with_descendants(blocks, unwanted)] = False
        return keepable

    def _heads_first(self, rows: Rows) -> Rows:
        order: Rows = rows[np.argsort(self._memory.blocks.depth[rows], kind="stable")]
        return order

    def report(self) -> DrainAnswer:
        """How far it is."""
        blocks = self._memory.blocks
        left = self._keepable() & ~blocks.valid[DISK]
        # What a swap is about to bring to the CPU tier goes on from there.
        moving = (
            blocks.queued[GPU] | blocks.queued[CPU] | ((blocks.frame[CPU] != NO_FRAME) & ~blocks.valid[CPU])
        )
        for pins in blocks.pins:
            moving |= pins > 0
        return DrainAnswer(
            blocks_left=int(np.count_nonzero(left)),
            blocks_moving=int(np.count_nonzero(left & blocks.to_disk & moving)),
            blocks_stored=self._links.transfers.blocks_moved_in[DISK],
        )
