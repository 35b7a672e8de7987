"""Threads that move blocks, one a link: GPU to CPU and back, CPU to DISK and back.

The core says what moves and pins both sides; a mover only copies, and tells the end of each transfer
exactly once. Links don't wait for each other. A link works in the order in which it is given work, so
a block that is deleted from disk and then written again is there in the end.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from kvstore.core.effects import DiskDelete, Transfer
from kvstore.core.errors import CheckFailed, check
from kvstore.core.types import Tier, TransferId
from kvstore.tiers.disk import DiskTier
from kvstore.tiers.moves import all_positions, copy_frames, delete_blocks, read_blocks, write_blocks
from kvstore.tiers.pool import HostPool

__all__ = ["TRANSFERS_MAX", "Ended", "Movers"]

log = logging.getLogger(__name__)

# A transfer's end: its id and the positions in it that failed. Called in a link's thread.
Ended = Callable[[TransferId, tuple[int, ...]], None]
# Does a transfer's work and returns the positions that failed.
Move = Callable[[Transfer], tuple[int, ...]]
Delete = Callable[[DiskDelete], None]
# Transfers in a link at once: far above what the core starts, so more are a bug in it.
TRANSFERS_MAX = 64


class Movers:
    """Deletes have no bound of their own: there are never more than blocks on disk."""

    def __init__(self, gpu: HostPool, cpu: HostPool | None, disk: DiskTier | None, ended: Ended) -> None:
        self._links: dict[tuple[Tier, Tier], _Link] = {}
        if cpu is not None:
            self._add(Tier.GPU, Tier.CPU, partial(copy_frames, gpu, cpu), ended)
            self._add(Tier.CPU, Tier.GPU, partial(copy_frames, cpu, gpu), ended)
        if cpu is not None and disk is not None:
            delete = partial(delete_blocks, disk)
            self._add(Tier.CPU, Tier.DISK, partial(write_blocks, cpu, disk), ended, delete)
            self._add(Tier.DISK, Tier.CPU, partial(read_blocks, disk, cpu), ended)

    def start(self, transfers: Sequence[Transfer], deletes: Sequence[DiskDelete]) -> None:
        """Returns at once. Deletes go before transfers, as `Effects` says."""
        for delete in deletes:
            self._link(Tier.CPU, Tier.DISK).put_delete(delete)
        for transfer in transfers:
            self._link(transfer.source, transfer.target).put(transfer)

    def alive(self) -> bool:
        """False once a thread has met a bug or has ended by itself: the service must stop then."""
        return all(link.alive() for link in self._links.values())

    @property
    def error(self) -> BaseException | None:
        """Why `alive` is False."""
        return next((link.error for link in self._links.values() if link.error is not None), None)

    def close(self, timeout: float) -> bool:
        """Lets the links work off what they have; what isn't begun by then ends as failed.

        False where a thread is still in a call: the pools and the disk must be left open then.
        """
        deadline = time.monotonic() + timeout
        for link in self._links.values():
            link.put_stop()
        stopped = [link.join(max(0.0, deadline - time.monotonic())) for link in self._links.values()]
        return all(stopped)

    def _add(
        self, source: Tier, target: Tier, move: Move, ended: Ended, delete: Delete | None = None
    ) -> None:
        self._links[source, target] = _Link(f"{source.name}-{target.name}", move, ended, delete)

    def _link(self, source: Tier, target: Tier) -> "_Link":
        link = self._links.get((source, target))
        if link is None:
            raise CheckFailed(f"no link from {source.name} to {target.name}")
        return link


class _Link:
    """One thread and its queue. None in the queue tells it to stop."""

    def __init__(self, name: str, move: Move, ended: Ended, delete: Delete | None) -> None:
        self.error: BaseException | None = None
        self._move = move
        self._delete = delete
        self._ended = ended
        self._stopping = False
        self._open = 0
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[Transfer | DiskDelete | None] = queue.SimpleQueue()
        # A daemon: a thread that hangs in a dead disk must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=f"kvstore-{name}", daemon=True)
        self._thread.start()

    def put(self, transfer: Transfer) -> None:
        check(not self._stopping, f"transfer {transfer.id} after the end of {self._thread.name}")
        with self._lock:
            check(self._open < TRANSFERS_MAX, f"{self._open} transfers in flight in {self._thread.name}")
            self._open += 1
        self._jobs.put(transfer)

    def put_delete(self, delete: DiskDelete) -> None:
        check(not self._stopping, f"a delete after the end of {self._thread.name}")
        self._jobs.put(delete)

    def put_stop(self) -> None:
        self._stopping = True
        self._jobs.put(None)

    def alive(self) -> bool:
        return self.error is None and (self._thread.is_alive() or self._stopping)

    def join(self, timeout: float) -> bool:
        self._thread.join(timeout)
        stopped = not self._thread.is_alive()
        # Whoever takes a job off the queue ends it, so that each ends once.
        for job in self._left():
            if isinstance(job, Transfer):
                self._end(job, all_positions(job))
        if not stopped:
            self._jobs.put(None)
        return stopped

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._do(job)

    def _do(self, job: Transfer | DiskDelete) -> None:
        """Whatever happens, the transfer ends and the thread goes on."""
        failed: tuple[int, ...] = ()
        try:
            if isinstance(job, Transfer):
                failed = self._move(job)
            elif self._delete is not None:
                self._delete(job)
            else:
                raise CheckFailed(f"{self._thread.name} deletes nothing")
        except BaseException as error:
            log.exception("%s: failed: %s", self._thread.name, job)
            if isinstance(error, CheckFailed) or not isinstance(error, Exception):
                self.error = error
            if isinstance(job, Transfer):
                failed = all_positions(job)
        if isinstance(job, Transfer):
            self._end(job, failed)

    def _end(self, transfer: Transfer, failed: tuple[int, ...]) -> None:
        with self._lock:
            self._open -= 1
        try:
            self._ended(transfer.id, failed)
        except Exception as error:
            # The core will wait for this end for ever: only a stop helps.
            log.critical("the end of transfer %d can't be told", transfer.id, exc_info=True)
            self.error = error

    def _left(self) -> Iterator[Transfer | DiskDelete | None]:
        while True:
            try:
                yield self._jobs.get_nowait()
            except queue.Empty:
                return
