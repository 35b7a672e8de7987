"""What requests that wait for GPU frames want, taken together: a block that several of them name counts
once, for one frame serves them all.
"""

import numpy as np

from kvstore.core.blocks import Blocks, concat
from kvstore.core.types import Rows

__all__ = ["Wanted"]


class Wanted:
    """Grows by one request after the other, in the order in which they stand."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self._named = np.zeros(blocks.capacity, np.bool_)
        # Of each request the blocks that none before it has named.
        self._parts: list[Rows] = []
        # Frames for new blocks, and for blocks that no sequence holds on the GPU.
        self.fresh = 0
        self.unheld = 0

    def add(self, held: Rows, fresh: int) -> None:
        """The GPU frames of blocks that exist, named any number of times, and so many new ones."""
        self.fresh += fresh
        if held.size:
            new = self._blocks.distinct(held[~self._named[held]])
            self._named[new] = True
            self._parts.append(new)
            self.unheld += self._count_unheld(new)

    def look_again(self) -> None:
        """Sequences have given up or taken blocks since they were counted."""
        self.unheld = self._count_unheld(concat(self._parts))

    @property
    def frames(self) -> int:
        """That are to be had for all of it."""
        return self.fresh + self.unheld

    def frames_beside(self, held: Rows) -> int:
        """The same when somebody holds these blocks."""
        return self.frames - self._count_unheld(held[self._named[held]])

    def _count_unheld(self, rows: Rows) -> int:
        return int(np.count_nonzero(~self._blocks.held(rows)))
