"""What no session has is not copied down while the GPU has room to spare and somebody computes.

As long as frames are free nothing has to leave the GPU, and a copy takes memory bandwidth from those who
compute, on a CPU their cores too. So what is released meanwhile waits until most frames are taken, or until
nobody computes. By then more is known of what is worth a copy at all. Tests: tests/core/test_later.py.
"""

from collections.abc import Callable, Iterable

import numpy as np

from kvstore.core.blocks import Rows
from kvstore.core.config import StoreConfig
from kvstore.core.engines import Engine
from kvstore.core.memory import Memory
from kvstore.core.types import GPU

__all__ = ["Later"]

# Who has sequences computes, unless it has sent no step for so long.
QUIET_SECONDS = 3.0
WHY_LATER = "no session has them, and the GPU has room to spare while engines compute"


class Later:
    """Blocks that were put off, by row."""

    def __init__(self, config: StoreConfig, memory: Memory, engines: Callable[[], Iterable[Engine]]) -> None:
        self._from_share = config.copy_from_share
        self._memory = memory
        self._engines = engines
        # By row: its generation when it was put off, plus one; 0 where it was not.
        self._put_off = np.zeros(memory.blocks.capacity, np.int64)
        self.has_any = False

    @property
    def is_time(self) -> bool:
        """Whether what waits is to go, and what comes need not wait."""
        pool = self._memory.pools[GPU]
        taken_count = pool.frame_count - pool.free_count
        return taken_count >= self._from_share * pool.frame_count or not self._is_computing

    def put_off(self, rows: Rows) -> None:
        blocks, pool = self._memory.blocks, self._memory.pools[GPU]
        counts = (("blocks_put_off", float(rows.size)),)
        figures = (("frames_free", float(pool.free_count)), ("copy_from_share", self._from_share))
        self._memory.note_admission(rows, "not copied yet", WHY_LATER, counts, lambda: figures)
        self._put_off[rows] = blocks.generation[rows] + np.int64(1)
        self.has_any = True

    def take(self) -> Rows:
        """All of them that are still there, heads of chains first."""
        blocks = self._memory.blocks
        rows = np.flatnonzero(self._put_off == blocks.generation + np.int64(1)).astype(np.intp)
        self._put_off.fill(0)
        self.has_any = False
        rows = rows[blocks.indexed[rows]]
        heads_first: Rows = rows[np.argsort(blocks.depth[rows], kind="stable")]
        return heads_first

    @property
    def _is_computing(self) -> bool:
        """Whether any engine has sequences, and has sent a step lately."""
        begin = self._memory.now - QUIET_SECONDS
        return any(
            engine.sequences and engine.last_event is not None and engine.last_event.time > begin
            for engine in self._engines()
        )
