"""Two pools and their movers, kept busy as the core keeps them: a few transfers in each link at a time."""

import queue
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count

import numpy as np

from kvstore.core.effects import Transfer
from kvstore.core.types import COPY, LOAD, Frame, Link, TransferId, Urgency
from kvstore.tiers.movers import Movers
from kvstore.tiers.pool import HostPool

__all__ = ["Bench", "Pairs", "bench_pools"]

# As the driver has it, and as the core starts them.
TRANSFER_BYTES = 16 << 20
UNDER_WAY = 2
URGENCIES = {COPY: Urgency.NEEDED, LOAD: Urgency.ASKED}

# Source and target frame of each block, in the order in which they move.
Pairs = list[tuple[int, int]]


class Bench:
    def __init__(self, gpu: HostPool, cpu: HostPool) -> None:
        self.gpu, self.cpu = gpu, cpu
        self.frames = gpu.frame_count
        self.block_bytes = gpu.block_bytes
        self.transfer_blocks = max(1, TRANSFER_BYTES // gpu.frame_bytes)
        self._ends: queue.SimpleQueue[TransferId] = queue.SimpleQueue()
        self.movers = Movers(gpu, cpu, None, self._ended)
        self._ids = count(1)

    def transfers(
        self, link: Link, pairs: Pairs, *, blocks: int = 0, urgency: Urgency | None = None
    ) -> list[Transfer]:
        """`blocks` in each; 0: as many as the driver would have."""
        size = blocks or self.transfer_blocks
        source, target = link
        return [
            Transfer(
                id=TransferId(next(self._ids)),
                source=source,
                target=target,
                source_frames=tuple(Frame(pair[0]) for pair in pairs[start : start + size]),
                target_frames=tuple(Frame(pair[1]) for pair in pairs[start : start + size]),
                urgency=urgency or URGENCIES[link],
            )
            for start in range(0, len(pairs), size)
        ]

    def move(self, *links: Sequence[Transfer]) -> float:
        """All of them, each link's in its order and a few at a time; returns the seconds that it took."""
        waiting = [deque(transfers) for transfers in links]
        link_of = {transfer.id: waits for waits in waiting for transfer in waits}
        began = time.perf_counter()
        self.movers.start(
            [waits.popleft() for waits in waiting for _ in range(min(UNDER_WAY, len(waits)))], []
        )
        for _ in range(len(link_of)):
            waits = link_of[self._ends.get()]
            if waits:
                self.movers.start([waits.popleft()], [])
        return time.perf_counter() - began

    def start(self, transfers: Sequence[Transfer]) -> None:
        self.movers.start(transfers, [])

    def next_end(self) -> TransferId:
        return self._ends.get()

    def _ended(self, transfer: TransferId, failed: tuple[int, ...], late: tuple[int, ...]) -> None:
        if failed:
            raise SystemExit(f"transfer {transfer} failed")
        self._ends.put(transfer)


@contextmanager
def bench_pools(block_bytes: int, pool_bytes: int) -> Iterator[Bench]:
    """Pools that have been written once, so that no page is new."""
    frames = pool_bytes // block_bytes
    with HostPool("gpu", frames, block_bytes, 1) as gpu, HostPool("cpu", frames, block_bytes, 1) as cpu:
        for pool in (gpu, cpu):
            pool.frames(0)[:] = np.random.default_rng(1).integers(0, 255, pool.stride_bytes, np.uint8)
        bench = Bench(gpu, cpu)
        try:
            yield bench
        finally:
            bench.movers.close(10.0)
