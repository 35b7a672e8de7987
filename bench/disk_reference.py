"""The device alone: bytes past the page cache, by as many threads and in I/Os as large as serve it best.

No checksums, no index, no names: what the tier's figures are shares of. The memory is that of a pool, as the
tier's frames are, and the file is allocated and written once before anything is timed.
"""

import os
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

from msgspec import Struct

from kvstore.tiers.pool import HostPool

__all__ = ["Device", "Manner", "Timed", "bench_device", "timing"]

# Threads and bytes of an I/O.
MANNERS = ((1, 4), (1, 16), (2, 1), (2, 4), (2, 16), (4, 1), (4, 4), (4, 16))
TRIES = 3


class Manner(NamedTuple):
    threads: int
    io_bytes: int

    def __str__(self) -> str:
        return f"{self.threads} threads, {self.io_bytes >> 20} MiB"


class Timed(Struct):
    """What a piece of work took; of the processor, all threads together."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0


@contextmanager
def timing() -> Iterator[Timed]:
    timed = Timed()
    cpu, began = time.process_time(), time.perf_counter()
    yield timed
    timed.seconds = time.perf_counter() - began
    timed.cpu_seconds = time.process_time() - cpu


class Device:
    """A file as long as the pool, and each byte of the pool at its own place in it."""

    def __init__(self, path: Path, pool: HostPool) -> None:
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            remedy = "let BENCH_DISK name a folder on a disk"
            raise SystemExit(f"{path.parent}: no O_DIRECT there ({error.strerror}); {remedy}") from error
        self._memory = pool.frames(0).reshape(-1).data
        os.posix_fallocate(self._fd, 0, self._memory.nbytes)
        self.write(Manner(2, 4 << 20))

    def write(self, manner: Manner) -> Timed:
        """All of it, and one sync at the end."""
        with timing() as timed:
            self._move("write", manner)
            os.fdatasync(self._fd)
        return timed

    def read(self, manner: Manner) -> Timed:
        with timing() as timed:
            self._move("read", manner)
        return timed

    def best(self) -> tuple[Manner, Manner]:
        """To write and to read, by the medians of a few tries in turns."""
        manners = [Manner(threads, mebibytes << 20) for threads, mebibytes in MANNERS]
        writes: dict[Manner, list[float]] = {manner: [] for manner in manners}
        reads: dict[Manner, list[float]] = {manner: [] for manner in manners}
        for _ in range(TRIES):
            for manner in manners:
                writes[manner].append(self.write(manner).seconds)
                reads[manner].append(self.read(manner).seconds)
        return min(manners, key=lambda each: median(writes[each])), min(
            manners, key=lambda each: median(reads[each])
        )

    def close(self) -> None:
        os.close(self._fd)

    def _move(self, kind: str, manner: Manner) -> None:
        offsets: queue.SimpleQueue[int] = queue.SimpleQueue()
        for offset in range(0, self._memory.nbytes, manner.io_bytes):
            offsets.put(offset)
        call = os.pwritev if kind == "write" else os.preadv
        faults: list[BaseException] = []

        def run() -> None:
            try:
                while True:
                    offset = offsets.get_nowait()
                    part = self._memory[offset : offset + manner.io_bytes]
                    if call(self._fd, [part], offset) != part.nbytes:
                        raise OSError(f"a {kind} was cut off at {offset}")
            except queue.Empty:
                pass
            except BaseException as error:
                faults.append(error)

        threads = [threading.Thread(target=run) for _ in range(manner.threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if faults:
            raise faults[0]


@contextmanager
def bench_device(folder: Path, pool: HostPool) -> Iterator[Device]:
    path = folder / "reference"
    device = Device(path, pool)
    try:
        yield device
    finally:
        device.close()
        path.unlink()
