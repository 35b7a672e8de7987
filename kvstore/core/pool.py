"""The frames of one tier: which are free, and whose each of the others is."""

import numpy as np
from numpy.typing import NDArray

from kvstore.core.blocks import NO_ROW, Rows, all_of
from kvstore.core.errors import check

__all__ = ["FramePool", "Frames"]

Frames = NDArray[np.intp]
# What the table is compared with, as `blocks.ROWLESS`.
UNOWNED = np.array(NO_ROW, np.int32)


class FramePool:
    """A fixed number of equal frames. Which frame is handed out means nothing to anybody."""

    def __init__(self, frame_count: int) -> None:
        self.frame_count = frame_count
        self._free = np.arange(frame_count - 1, -1, -1, dtype=np.int32)
        self.free_count = frame_count
        # Since the start: frames that blocks have given up.
        self.given_count = 0
        # Frames that are neither free nor a block's: a device may still write into them.
        self.withheld_count = 0
        # The block that owns each frame, or NO_ROW.
        self.row = np.full(frame_count, NO_ROW, np.int32)

    def take(self, rows: Rows) -> Frames:
        """A free frame for each row. The caller has made sure that there are enough."""
        check(rows.size <= self.free_count, "pool: more frames were taken than are free")
        self.free_count -= rows.size
        frames: Frames = self._free[self.free_count : self.free_count + rows.size].astype(np.intp)
        self.row[frames] = rows
        return frames

    def give(self, frames: Frames) -> None:
        """Takes frames back. Each must be owned: a second return is a bug, not a second free frame."""
        check(all_of(self.row[frames] != UNOWNED), "pool: a frame was given back twice")
        self.row[frames] = NO_ROW
        self._free[self.free_count : self.free_count + frames.size] = frames
        self.free_count += frames.size
        self.given_count += frames.size

    def withhold(self, frames: Frames) -> None:
        """Takes frames from their blocks, and keeps them from everybody."""
        check(all_of(self.row[frames] != UNOWNED), "pool: a free frame was withheld")
        self.row[frames] = NO_ROW
        self.withheld_count += frames.size
        self.given_count += frames.size

    def restore(self, frames: list[int]) -> None:
        """Frames that were withheld are free again."""
        check(len(frames) <= self.withheld_count, "pool: more frames came back than were withheld")
        self._free[self.free_count : self.free_count + len(frames)] = frames
        self.free_count += len(frames)
        self.withheld_count -= len(frames)

    @property
    def taken_count(self) -> int:
        """Since the start: frames that blocks were given. Those that they have, and have given up."""
        return self.frame_count - self.free_count - self.withheld_count + self.given_count

    def owned(self) -> Rows:
        """The rows that own a frame."""
        rows: Rows = self.row[self.row != NO_ROW].astype(np.intp)
        return rows
