"""Blocks that are to be brought up before anybody asks for them.

To the CPU tier from disk, or on to the GPU. A wish only: it takes no room from anybody, it goes behind
all that is asked for, and it is let go where there is no room. When an engine asks for such a block
meanwhile, it waits for the same transfer, which then goes as what is asked for, or asks for one of its own.
"""

import numpy as np

from kvstore.core.blocks import NO_FRAME, Rows
from kvstore.core.config import StoreConfig
from kvstore.core.lanes import Lanes
from kvstore.core.memory import Memory
from kvstore.core.types import CPU, DISK, GPU, LOAD, PREFETCH, READ, Tier

__all__ = ["Ahead"]


class Ahead:
    """Who is to go where; the lanes hold who goes next."""

    def __init__(self, config: StoreConfig, memory: Memory, lanes: Lanes) -> None:
        self._memory = memory
        self._reads, self._loads = lanes[READ, PREFETCH], lanes[LOAD, PREFETCH]
        self._wishes_max = config.queue_blocks_max
        self._frames = (config.gpu_frames, config.cpu_frames - config.cpu_frames_reserved, 0)
        # By row: the tier, and the generation of the row, which may be another block's by now.
        self.wishes: dict[int, tuple[Tier, int]] = {}

    def __len__(self) -> int:
        return len(self.wishes)

    def wish(self, tier: Tier, rows: Rows) -> None:
        """These are to have a copy in the tier, GPU or CPU; parents come first, and go first. No more than
        the tier holds, lest the last ones drive out the first."""
        blocks = self._memory.blocks
        rows = blocks.distinct(rows[blocks.indexed[rows] & ~blocks.has_frame(tier, rows)])
        if tier is CPU:
            rows = rows[blocks.valid[DISK][rows]]
        room = max(0, min(self._frames[tier], self._wishes_max - len(self.wishes)))
        self._memory.blocks_shed[tier] += max(0, rows.size - room)
        rows = rows[:room]
        generations = blocks.generation[rows].tolist()
        for row, generation in zip(rows.tolist(), generations, strict=True):
            self.wishes[row] = tier, generation
        at_hand = blocks.has_frame(CPU, rows)
        self._loads.add(rows[at_hand].tolist())
        self._reads.add(rows[~at_hand].tolist())

    def to_read(self, rows: Rows) -> Rows:
        """Of these those that are still to be read from disk. Some may be in the CPU tier by now."""
        blocks, rows = self._memory.blocks, self._standing(rows)
        self.pass_on(rows[blocks.valid[CPU][rows]])
        rows = rows[~blocks.valid[CPU][rows]]
        lacking = (blocks.frame[CPU][rows] == NO_FRAME) & blocks.valid[DISK][rows]
        # What another transfer brings to the CPU tier is passed on when that has ended.
        self.fulfil(rows[(blocks.frame[CPU][rows] == NO_FRAME) & ~lacking])
        to_read: Rows = rows[lacking]
        return to_read

    def to_load(self, rows: Rows) -> Rows:
        """Of these those that are still to be loaded. Some may be on disk only by now."""
        blocks, rows = self._memory.blocks, self._standing(rows)
        needless = blocks.has_frame(GPU, rows)
        self.fulfil(rows[needless])
        rows = rows[~needless]
        at_hand = blocks.valid[CPU][rows]
        self._reads.add(rows[~at_hand].tolist())
        ready: Rows = rows[at_hand]
        return ready

    def pass_on(self, rows: Rows) -> None:
        """These are in the CPU tier now: there, or half of the way."""
        for row in rows.tolist():
            wish = self.wishes.get(row)
            if wish is None:
                continue
            if wish[0] is GPU:
                self._loads.add([row])
            else:
                del self.wishes[row]

    def fulfil(self, rows: Rows) -> None:
        """Nothing is to be done for these any more."""
        for row in rows.tolist():
            self.wishes.pop(row, None)

    def shed(self, rows: Rows) -> None:
        """There is no room for these, or no way."""
        for row in rows.tolist():
            tier, _ = self.wishes.pop(row)
            self._memory.blocks_shed[tier] += 1

    def _standing(self, rows: Rows) -> Rows:
        """Of these those of which the wish was told, and that can be found still."""
        blocks = self._memory.blocks
        found = (blocks.indexed[rows] & ~blocks.unwanted[rows]).tolist()
        standing: list[int] = []
        for row, generation, is_found in zip(
            rows.tolist(), blocks.generation[rows].tolist(), found, strict=True
        ):
            wish = self.wishes.get(row)
            if wish is not None and is_found and wish[1] == generation:
                standing.append(row)
            else:
                self.wishes.pop(row, None)
        return np.array(standing, np.intp)
