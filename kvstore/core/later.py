"""What no session has is not copied down while the GPU has room to spare and somebody computes.

As long as frames are free nothing has to leave the GPU, and a copy takes memory bandwidth from those who
compute, on a CPU their cores too. So what is released meanwhile waits until most frames are taken, or until
nobody computes. By then more is known of what is worth a copy at all.

What has become due goes in lots: a whole pool at once would hold up a step's answer for a tenth of a second,
and what finds no place in the queue of a link is shed, which is for good. Tests: tests/core/test_later.py.
"""

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from kvstore.core.blocks import NO_ROWS, Rows
from kvstore.core.config import StoreConfig
from kvstore.core.engines import Engine
from kvstore.core.memory import Memory
from kvstore.core.types import GPU

__all__ = ["LOT_BLOCKS", "Later"]

# Who has sequences computes, unless it has sent no step for so long.
QUIET_SECONDS = 3.0
# Of a step or a tick: some milliseconds.
LOT_BLOCKS = 1024
WHY_LATER = "no session has them, and the GPU has room to spare while engines compute"


class Later:
    """Blocks that were put off, by row."""

    def __init__(self, config: StoreConfig, memory: Memory, engines: Callable[[], Iterable[Engine]]) -> None:
        self._from_share = config.copy_from_share
        self._memory = memory
        self._engines = engines
        # By row: its generation when it was put off, plus one; 0 where it was not.
        self._put_off = np.zeros(memory.blocks.capacity, np.int64)
        # Those that go next, heads of chains first; some may have left since they were put in order.
        self._due = NO_ROWS
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

    def take(self, count: int) -> Rows:
        """The next of them that are still there, so many at the most, heads of chains first."""
        if not self._due.size:
            self._due = self._in_order()
        rows, self._due = self._due[:count], self._due[count:]
        rows = rows[self._wait(rows)]
        self._put_off[rows] = 0
        if not self._due.size:
            self._due = self._in_order()
        self.has_any = bool(self._due.size)
        return rows

    def _in_order(self) -> Rows:
        rows = np.flatnonzero(self._put_off).astype(np.intp)
        waiting = self._wait(rows)
        self._put_off[rows[~waiting]] = 0
        rows = rows[waiting]
        heads_first: Rows = rows[np.argsort(self._memory.blocks.depth[rows], kind="stable")]
        return heads_first

    def _wait(self, rows: Rows) -> NDArray[np.bool_]:
        """Whether each was put off, and is still the same block."""
        blocks = self._memory.blocks
        is_same: NDArray[np.bool_] = self._put_off[rows] == blocks.generation[rows] + np.int64(1)
        return is_same & blocks.indexed[rows]

    @property
    def _is_computing(self) -> bool:
        """Whether any engine has sequences, and has sent a step lately."""
        begin = self._memory.now - QUIET_SECONDS
        return any(
            engine.sequences and engine.last_event is not None and engine.last_event.time > begin
            for engine in self._engines()
        )
