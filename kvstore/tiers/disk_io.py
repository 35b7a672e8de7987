"""The threads that wait for the device, and whose turn it is.

Reads go before writes: a write begins only when no read waits or is in service, and only so much is being
written at a time, so a read waits for that at the most. Two threads write it, since one alone leaves the
device idle between its calls. Lest writes starve where reads never end, one write may go after a number of
reads. Syncs and transactions of the index have threads of their own and wait for neither: they move little,
and what one batch waits for them, another writes. Transactions are in order; syncs of several files go
together, since what they wait for is the same.

A device may hang, and then nothing that Python can do brings the thread back. So whoever waits for an I/O
does so up to a deadline, and is told whether it was never begun or is *late*: then what it was to read or
write stays taken until it returns, of which `returned` tells.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Generic, TypeVar

from kvstore.core.errors import check

__all__ = ["Io", "IoKind", "IoLate", "IoNotBegun", "IoThreads"]

T = TypeVar("T")

READ_THREADS = 4
WRITE_THREADS = 2
SYNC_THREADS = 4
# A write that waits has its turn after so many reads that were begun meanwhile.
READS_PER_WRITE = 16
# In service at a time; a larger write is alone.
WRITE_BYTES_MAX = 4 << 20


class IoKind(Enum):
    # Tables by kind are looked into for each I/O, and an enum's own hash is Python's work.
    __hash__ = object.__hash__

    READ = "read"
    WRITE = "write"
    SYNC = "sync"
    INDEX = "commit"


class IoNotBegun(TimeoutError):
    """The deadline has passed, and it will never be begun."""


class IoLate(TimeoutError):
    """The deadline has passed, and it is still under way."""


class Io(Generic[T]):
    """One call for one of the threads. `wait` once for each that was started."""

    def __init__(self, threads: "IoThreads", kind: IoKind, call: Callable[[], T], size_bytes: int) -> None:
        self._threads = threads
        self.kind = kind
        self.size_bytes = size_bytes
        self._call = call
        self._returned: Callable[[], None] | None = None
        self._result: T
        self._error: BaseException | None = None
        # Of who waits for its end, if anybody does yet.
        self.ended: threading.Condition | None = None
        self.begin_time = 0.0
        self.is_begun = self.is_ended = self.is_late = False

    def wait(self, returned: Callable[[], None] | None = None) -> T:
        """What the call returns or raises; IoNotBegun or IoLate when the deadline has passed.

        Only after IoLate is `returned` called, from the thread of the call, when that has ended at last.
        None: nothing stays taken till then, or the call itself has seen to all that follows.
        """
        self._threads.wait(self, returned)
        if self._error is not None:
            raise self._error
        return self._result

    def run(self) -> None:
        try:
            self._result = self._call()
        except BaseException as error:
            self._error = error

    def expect(self, returned: Callable[[], None] | None) -> None:
        self.is_late = True
        self._returned = returned

    def tell(self) -> None:
        if self._returned is not None:
            self._returned()


class IoThreads:
    """`deadline_seconds`: how long one I/O may take, and how long a queue may stand still."""

    def __init__(self, name: str, deadline_seconds: float) -> None:
        self._deadline_seconds = deadline_seconds
        self._lock = threading.Lock()
        # Each woken only by what concerns it: here the threads of a kind; who waits for an end, by that I/O.
        self._wakes = {kind: threading.Condition(self._lock) for kind in IoKind}
        self._queues: dict[IoKind, deque[Io[object]]] = {kind: deque() for kind in IoKind}
        self._in_service = dict.fromkeys(IoKind, 0)
        self._late = dict.fromkeys(IoKind, 0)
        # Of writes in service that aren't late.
        self._writing_bytes = 0
        # When one of the kind was last begun.
        self._begin_times = dict.fromkeys(IoKind, 0.0)
        self._reads_since_write = 0
        self._closed = False
        self._threads = {
            IoKind.READ: READ_THREADS,
            IoKind.WRITE: WRITE_THREADS,
            IoKind.SYNC: SYNC_THREADS,
            IoKind.INDEX: 1,
        }
        # Daemons: one that hangs in a dead device must not keep the process from ending.
        self._running = [
            threading.Thread(target=self._run, args=(kind,), name=f"{name}-{kind.value}-{n}", daemon=True)
            for kind, count in self._threads.items()
            for n in range(count)
        ]
        for thread in self._running:
            thread.start()

    def start(self, kind: IoKind, call: Callable[[], T], size_bytes: int = 0) -> Io[T]:
        """`size_bytes` counts for writes."""
        io = Io(self, kind, call, size_bytes)
        with self._lock:
            check(not self._closed, f"a {kind.value} after the end of the disk's threads")
            self._queues[kind].append(io)  # type: ignore[arg-type]  # What it returns is nothing to the queue.
            io.begin_time = time.monotonic()
            self._wakes[kind].notify()
        return io

    def wait(self, io: Io[T], returned: Callable[[], None] | None) -> None:
        with self._lock:
            while not io.is_ended:
                left = self._left_seconds(io)
                if left > 0:
                    io.ended = io.ended or threading.Condition(self._lock)
                    io.ended.wait(left)
                elif io.is_begun:
                    io.expect(returned)
                    self._late[io.kind] += 1
                    self._end_writing(io)
                    raise IoLate(f"a {io.kind.value} has not returned for {self._deadline_seconds:g} seconds")
                else:
                    self._queues[io.kind].remove(io)  # type: ignore[arg-type]  # As in `start`.
                    self._wake_writer()
                    raise IoNotBegun(f"no {io.kind.value} has begun for {self._deadline_seconds:g} seconds")

    def queued(self, kind: IoKind) -> int:
        """I/Os of a kind that have not begun."""
        with self._lock:
            return len(self._queues[kind])

    @property
    def late_count(self) -> int:
        """I/Os that have not returned in time nor since."""
        with self._lock:
            return sum(self._late.values())

    def alive(self) -> bool:
        """False once a thread has ended by itself: I/Os of its kind would never begin."""
        return self._closed or all(thread.is_alive() for thread in self._running)

    def close(self, seconds: float) -> bool:
        """Lets them do what is queued. False where one hasn't come back by then."""
        with self._lock:
            self._closed = True
            for wake in self._wakes.values():
                wake.notify_all()
        end = time.monotonic() + seconds
        for thread in self._running:
            thread.join(max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in self._running)

    def _left_seconds(self, io: Io[T]) -> float:
        """Till the deadline. In a queue that moves, an I/O may wait as long as the queue is."""
        if not io.is_begun and self._late[io.kind] == self._threads[io.kind]:
            return 0.0
        since = io.begin_time if io.is_begun else max(io.begin_time, self._begin_times[io.kind])
        return since + self._deadline_seconds - time.monotonic()

    def _run(self, kind: IoKind) -> None:
        while (io := self._next(kind)) is not None:
            io.run()
            with self._lock:
                self._in_service[kind] -= 1
                io.is_ended = True
                if not io.is_late:
                    self._end_writing(io)
                if io.ended is not None:
                    io.ended.notify()
                self._wake_writer()
            # Whether it is late is settled now. It counts as such until what it held is given back.
            if io.is_late:
                io.tell()
                with self._lock:
                    self._late[kind] -= 1

    def _next(self, kind: IoKind) -> Io[object] | None:
        queue = self._queues[kind]
        with self._lock:
            while not (queue and (kind is not IoKind.WRITE or self._may_write())):
                if self._closed and not queue:
                    return None
                self._wakes[kind].wait()
            io = queue.popleft()
            if self._closed and not queue:
                # The others may have waited for this one to begin, and nothing else will wake them.
                self._wakes[kind].notify_all()
            self._in_service[kind] += 1
            io.is_begun = True
            io.begin_time = self._begin_times[kind] = time.monotonic()
            if kind is IoKind.WRITE:
                self._reads_since_write = 0
                self._writing_bytes += io.size_bytes
                self._wake_writer()
            elif kind is IoKind.READ and self._queues[IoKind.WRITE]:
                self._reads_since_write += 1
                self._wake_writer()
            return io

    def _wake_writer(self) -> None:
        if self._queues[IoKind.WRITE] and self._may_write():
            self._wakes[IoKind.WRITE].notify()

    def _end_writing(self, io: Io[T]) -> None:
        if io.kind is IoKind.WRITE:
            self._writing_bytes -= io.size_bytes
            self._wake_writer()

    def _may_write(self) -> bool:
        """Whether the first of the writes that wait may begin."""
        size = self._writing_bytes + self._queues[IoKind.WRITE][0].size_bytes
        if self._writing_bytes and size > WRITE_BYTES_MAX:
            return False
        # Reads that are late may never return.
        reading = self._in_service[IoKind.READ] > self._late[IoKind.READ] or self._queues[IoKind.READ]
        return not reading or self._reads_since_write >= READS_PER_WRITE
