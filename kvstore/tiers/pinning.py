"""The CPU pool registered as pinned memory, so that devices copy to and from it by themselves.

In pieces, since a driver may refuse large ones whatever memory there is, and calls of all processes wait
while one is pinned; in the background, for a hundred GiB take many seconds. Copies work before and without
it, slower. Its pages are allocated already, within the limit of the control group (memory.py): pinning adds
none.

A piece ends where a frame does. A copy must not cross from one piece into the next (`frames_a_piece`).
"""

import logging
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

from kvstore.core.errors import CheckFailed
from kvstore.cuda.driver import CudaFailed, Device
from kvstore.tiers.cuda_thread import CudaThread
from kvstore.tiers.pool import HostPool

__all__ = ["PIECE_BYTES", "Pinning", "frames_a_piece"]

PIECE_BYTES = 1 << 30
CLOSE_SECONDS = 5.0

log = logging.getLogger(__name__)


def frames_a_piece(stride_bytes: int, piece_bytes: int = PIECE_BYTES) -> int:
    return max(1, piece_bytes // stride_bytes)


@dataclass(slots=True)
class _Rank:
    """What is still to be pinned for a device, and what is. `size` by address."""

    thread: CudaThread
    left: deque[tuple[int, int]]
    pinned: dict[int, int] = field(default_factory=dict)


class Pinning:
    """Of each rank's memory, with the device of that rank. `option` is what an operator would turn down."""

    def __init__(
        self,
        pool: HostPool,
        threads: tuple[CudaThread, ...],
        *,
        option: str = "",
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        self.total_bytes = pool.size_bytes
        # The first that could not be pinned, in words.
        self.problem = ""
        self._name = pool.name
        self._option = option or f"the size of the {pool.name} pool"
        self._stopped = False
        step = frames_a_piece(pool.stride_bytes, piece_bytes) * pool.stride_bytes
        rank_bytes = pool.frame_count * pool.stride_bytes
        self._ranks = [
            _Rank(
                thread,
                deque(
                    (pool.address(rank) + start, min(step, rank_bytes - start))
                    for start in range(0, rank_bytes, step)
                ),
            )
            for rank, thread in enumerate(threads)
        ]

    @property
    def pinned_bytes(self) -> int:
        return sum(sum(rank.pinned.copy().values()) for rank in self._ranks)

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left to try."""
        return all(not rank.left for rank in self._ranks)

    def start(self) -> None:
        """Pins a piece a rank, so that what is measured first is what copies will take; the rest later."""
        for rank in self._ranks:
            pin_next = partial(self._pin_next, rank)
            if rank.thread.call(pin_next):
                rank.thread.add_step(pin_next)

    def close(self) -> None:
        """Before the pool is closed, and after all copies have ended."""
        self._stopped = True
        for rank in self._ranks:
            try:
                rank.thread.call(partial(_unpin, rank), timeout=CLOSE_SECONDS)
            except (CheckFailed, CudaFailed, TimeoutError) as error:
                log.warning(
                    "the %s pool, or a part of it, stays pinned for %s: %s",
                    self._name,
                    rank.thread.uuid,
                    error,
                )

    def _pin_next(self, rank: _Rank, device: Device) -> bool:
        """One piece; whether there are more. One that can't be pinned says nothing of the next."""
        if self._stopped:
            return False
        address, size = rank.left[0]
        try:
            device.pin(address, size)
        except CudaFailed as error:
            if error.is_lost:
                raise
            self._note(rank, size, error)
        else:
            rank.pinned[address] = size
        rank.left.popleft()
        if not rank.left and not self.problem:
            log.info("pinned all %d bytes for %s", sum(rank.pinned.values()), rank.thread.uuid)
        return bool(rank.left)

    def _note(self, rank: _Rank, size: int, error: CudaFailed) -> None:
        """The first is told aloud; the figure of what is pinned tells of all."""
        if self.problem:
            return
        what = f"{size} bytes of host RAM of the {self._name} pool"
        self.problem = f"{what} can't be pinned for {rank.thread.uuid}: {error}"
        log.warning(
            "%s. This is host RAM, not the GPU's memory. It is used unpinned, so its copies are slower; "
            "%d of %d bytes are pinned so far. To have all of it pinned, lower %s, to at most %d",
            self.problem,
            self.pinned_bytes,
            self.total_bytes,
            self._option,
            # Of the first that failed half may be had; nobody says what the driver would take.
            self.pinned_bytes or size // 2,
        )


def _unpin(rank: _Rank, device: Device) -> None:
    """All of it is tried, whatever fails of it."""
    with ExitStack() as undo:
        while rank.pinned:
            address, _ = rank.pinned.popitem()
            undo.callback(device.unpin, address)
