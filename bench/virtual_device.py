"""A device in virtual time under the disk tier: one I/O at a time, each taking what it would take on a device
of a given speed, and no time at all in truth. So what waits for what can be measured on any machine.

The threads of the tier are real and wait for each other here; only the clock is not. Paused, the device
keeps the I/O that it has in service until it is resumed: whoever measures can so queue what he likes
behind it and knows what was there when.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from kvstore.tiers.files import Files

__all__ = ["Served", "VirtualDevice"]

STUCK_SECONDS = 60.0


class Served(Struct, frozen=True, kw_only=True):
    """One I/O; times are virtual seconds since the device was made. `kind` is the name of the call."""

    kind: str
    size_bytes: int
    begin: float
    end: float


class VirtualDevice:
    """Wraps `files`, which does the I/O in truth."""

    def __init__(
        self, files: Files, *, bytes_a_second: float, fixed_seconds: float, sync_seconds: float
    ) -> None:
        self._files = files
        self._bytes_a_second = bytes_a_second
        self._fixed_seconds = fixed_seconds
        self._sync_seconds = sync_seconds
        self._changed = threading.Condition()
        self._paused = False
        self._in_service = ""
        # I/Os that stand at the door, by kind.
        self._waiting: Counter[str] = Counter()
        self._now = 0.0
        self._served: list[Served] = []

    @property
    def now(self) -> float:
        """Virtual seconds; they pass only while something is served."""
        with self._changed:
            return self._now

    @property
    def served(self) -> list[Served]:
        """All that has ended, in order."""
        with self._changed:
            return list(self._served)

    def pause(self) -> None:
        with self._changed:
            self._paused = True

    def resume(self) -> None:
        with self._changed:
            self._paused = False
            self._changed.notify_all()

    def wait_for_service(self, kind: str) -> None:
        """Until an I/O of this kind is in service on the paused device. TimeoutError where none comes."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._in_service == kind, STUCK_SECONDS):
                raise TimeoutError(f"no {kind} in service, but {self._in_service or 'nothing'}")

    def wait_for_arrival(self, kind: str) -> None:
        """Until an I/O of this kind waits for the one in service. TimeoutError where none comes."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._waiting[kind] > 0, STUCK_SECONDS):
                raise TimeoutError(f"no {kind} has come")

    def create(self, path: Path, size_bytes: int) -> int:
        return self._files.create(path, size_bytes)

    def open(self, path: Path) -> int:
        return self._files.open(path)

    def write(self, fd: int, parts: Sequence[memoryview], offset: int) -> None:
        with self._service("write", sum(part.nbytes for part in parts)):
            self._files.write(fd, parts, offset)

    def read(self, fd: int, parts: Sequence[memoryview], offset: int) -> None:
        with self._service("read", sum(part.nbytes for part in parts)):
            self._files.read(fd, parts, offset)

    def sync(self, fd: int) -> None:
        with self._service("sync", 0):
            self._files.sync(fd)

    def remove(self, path: Path) -> None:
        self._files.remove(path)

    def close(self, fd: int) -> None:
        self._files.close(fd)

    @contextmanager
    def _service(self, kind: str, size_bytes: int) -> Iterator[None]:
        """The device, for one I/O. What waits for it is not in a queue of ours: that is the tier's affair."""
        with self._changed:
            self._waiting[kind] += 1
            self._changed.notify_all()
            self._wait(lambda: not self._in_service)
            self._waiting[kind] -= 1
            self._in_service = kind
            self._changed.notify_all()
            begin = self._now
        try:
            yield
        finally:
            with self._changed:
                self._wait(lambda: not self._paused)
                seconds = self._fixed_seconds + size_bytes / self._bytes_a_second
                self._now = begin + (self._sync_seconds if kind == "sync" else seconds)
                self._served.append(Served(kind=kind, size_bytes=size_bytes, begin=begin, end=self._now))
                self._in_service = ""
                self._changed.notify_all()

    def _wait(self, good: Callable[[], bool]) -> None:
        if not self._changed.wait_for(good, STUCK_SECONDS):
            raise TimeoutError("the device was never resumed")
