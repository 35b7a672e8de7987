"""What is to outlive the service gets its copy on disk before it has to leave the CPU tier.

It is asked for when a session's turn ends. What came to nothing then (shed, failed, lost on disk) is
asked for again here, the coldest first: when the disk has nothing else to do, and at any rate while much
of the CPU tier is full of what has no copy below. So eviction is a change of the table.
"""

import numpy as np
from numpy.typing import NDArray

from kvstore.core.blocks import NO_FRAME, Rows
from kvstore.core.config import StoreConfig
from kvstore.core.links import Links
from kvstore.core.memory import Memory
from kvstore.core.tree import with_ancestors
from kvstore.core.types import COPY, CPU, DISK, GPU, WRITE, Tier

__all__ = ["Writing"]

INTERVAL_SECONDS = 1.0
# While writes fail, each look is twice as long after the one before it, up to this many doublings.
DOUBLINGS_MAX = 6
# A look asks for so many transfers' blocks at the most.
BATCHES_MAX = 8


class Writing:
    """Looks after what is wished for on disk, once a second at the most."""

    def __init__(self, config: StoreConfig, memory: Memory, links: Links) -> None:
        self._config = config
        self._memory = memory
        self._links = links
        self._next_look = 0.0

    def look(self, time: float) -> None:
        """Time has passed."""
        if not self._config.disk_frames or time < self._next_look:
            return
        failures = min(self._links.transfers.writes_failed_in_a_row, DOUBLINGS_MAX)
        self._next_look = time + INTERVAL_SECONDS * 2**failures
        rows = self._memory.pools[CPU].owned()
        lacking = rows[self._lacking(CPU, rows)]
        self._watch(rows, lacking)
        yielding = self._links.yielding
        if yielding.cpu_is_full or not (yielding.loads_wait or self._links.is_writing):
            self._ask(CPU, lacking)
            on_gpu = self._memory.pools[GPU].owned()
            self._ask(GPU, on_gpu[self._lacking(GPU, on_gpu)])

    def _lacking(self, tier: Tier, rows: Rows) -> NDArray[np.bool_]:
        """Whether each is wanted on disk and is here, and is not there nor, from the GPU, half of the way."""
        blocks = self._memory.blocks
        wanted: NDArray[np.bool_] = blocks.to_disk[rows] & blocks.valid[tier][rows]
        if tier is GPU:
            wanted &= ~blocks.has_frame(CPU, rows)
        return wanted & ~blocks.has_frame(DISK, rows)

    def _watch(self, rows: Rows, lacking: Rows) -> None:
        """Whether the CPU tier holds too much that can't be given up without loss."""
        blocks, marks = self._memory.blocks, self._memory.watermarks[CPU]
        claimed = (blocks.claims[rows] > 0) & (blocks.frame[DISK][rows] == NO_FRAME)
        kept = int(np.count_nonzero(claimed | ~blocks.valid[CPU][rows])) + lacking.size
        share = kept / self._config.cpu_frames
        yielding = self._links.yielding
        if share >= marks.high:
            yielding.cpu_is_full = True
        elif share < marks.low:
            yielding.cpu_is_full = False

    def _ask(self, tier: Tier, lacking: Rows) -> None:
        """The coldest of these, and before them what they hang on."""
        if not lacking.size:
            return
        blocks, most = self._memory.blocks, BATCHES_MAX * self._config.transfer_blocks_max
        is_lacking = np.zeros(blocks.capacity, np.bool_)
        is_lacking[lacking] = True
        coldest = self._memory.eviction.victims(tier, most, lambda rows: rows[is_lacking[rows]])
        is_lacking[coldest] = False
        above = with_ancestors(self._memory.blocks, coldest)
        above = above[is_lacking[above]]
        above = above[np.argsort(blocks.depth[above], kind="stable")]
        # They stand as they were used, each chain's tail first.
        chains = np.split(coldest, 1 + np.flatnonzero(np.diff(blocks.depth[coldest]) >= 0))
        rows = np.concatenate([above, *(chain[::-1] for chain in chains)])
        self._links.ask_down(WRITE if tier is CPU else COPY, rows)
