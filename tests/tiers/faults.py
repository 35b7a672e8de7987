"""Faults of a device, by seed: a wrapper of the seam through which the disk tier touches segment files.

Which call meets which fault hangs on the seed, the kind of call and how many of that kind there were
before it, not on time: so a run with one thread is the same each time. What a device may do wrong and
owns up to (an error, half of the bytes written or read and an error) is here, and what it hides (other
bytes read than were written). What a power loss leaves is in power.py.
"""

import errno
import os
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvstore.tiers.files import Files

__all__ = ["NO_FAULTS", "BrokenFiles", "FaultyFiles", "FullFiles", "HangingFiles", "PassedOn", "Rates"]

ERRORS = (errno.EIO, errno.ENOSPC, errno.EROFS, errno.EDQUOT)
SECTOR_BYTES = 4096
DELAY_SECONDS_MAX = 0.002


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """How many of a thousand calls meet the fault."""

    delay: int = 0
    read_error: int = 0
    # Some of the bytes arrive, then the call fails, as a short `preadv` does.
    short_read: int = 0
    # All bytes arrive, one of them wrong, and nothing is said.
    rotten_read: int = 0
    write_error: int = 0
    # Some sectors are written, then the call fails.
    torn_write: int = 0
    sync_error: int = 0
    create_error: int = 0
    remove_error: int = 0


NO_FAULTS = Rates()


class PassedOn:
    """A wrapper that changes nothing: what the others are made of."""

    def __init__(self, files: Files) -> None:
        self.files = files

    def create(self, path: Path, size_bytes: int) -> int:
        return self.files.create(path, size_bytes)

    def open(self, path: Path) -> int:
        return self.files.open(path)

    def write(self, fd: int, parts: Sequence[memoryview], offset: int) -> None:
        self.files.write(fd, parts, offset)

    def read(self, fd: int, parts: Sequence[memoryview], offset: int) -> None:
        self.files.read(fd, parts, offset)

    def sync(self, fd: int) -> None:
        self.files.sync(fd)

    def remove(self, path: Path) -> None:
        self.files.remove(path)

    def close(self, fd: int) -> None:
        self.files.close(fd)


class FaultyFiles(PassedOn):
    """`rates` may be set anew at any time; `met` counts what was injected, by the name of its rate."""

    def __init__(self, files: Files, seed: int, rates: Rates) -> None:
        super().__init__(files)
        self.rates = rates
        self.met: Counter[str] = Counter()
        self._seed = seed
        self._calls: Counter[str] = Counter()
        self._lock = threading.Lock()

    def create(self, path: Path, size_bytes: int) -> int:
        self._maybe_fail("create_error", path)
        return super().create(path, size_bytes)

    def write(self, fd: int, parts: Sequence[memoryview], offset: int) -> None:
        self._maybe_wait()
        self._maybe_fail("write_error", fd)
        draw = self._draw("torn_write")
        if draw:
            self._tear(fd, parts, offset, draw)
        super().write(fd, parts, offset)

    def read(self, fd: int, parts: Sequence[memoryview], offset: int) -> None:
        self._maybe_wait()
        self._maybe_fail("read_error", fd)
        super().read(fd, parts, offset)
        total = sum(part.nbytes for part in parts)
        draw = self._draw("short_read")
        if draw:
            # What did not arrive is whatever was there before: here, junk.
            _overwrite(parts, draw % total, b"\xa5" * total)
            raise OSError(errno.EIO, f"short read: {draw % total} of {total} bytes")
        draw = self._draw("rotten_read")
        if draw:
            at = draw % total
            _overwrite(parts, at, bytes([_byte(parts, at) ^ 1 << draw % 8]))

    def sync(self, fd: int) -> None:
        self._maybe_wait()
        self._maybe_fail("sync_error", fd)
        super().sync(fd)

    def remove(self, path: Path) -> None:
        self._maybe_fail("remove_error", path)
        super().remove(path)

    def _tear(self, fd: int, parts: Sequence[memoryview], offset: int, draw: int) -> None:
        data = _aligned(b"".join(parts))
        for start in range(0, data.nbytes, SECTOR_BYTES):
            if draw >> start // SECTOR_BYTES % 64 & 1:
                super().write(fd, [data[start : start + SECTOR_BYTES].data], offset + start)
        raise OSError(errno.EIO, "torn write")

    def _maybe_wait(self) -> None:
        draw = self._draw("delay")
        if draw:
            time.sleep(draw % 1000 / 1000 * DELAY_SECONDS_MAX)

    def _maybe_fail(self, kind: str, where: object) -> None:
        draw = self._draw(kind)
        if draw:
            code = ERRORS[draw % len(ERRORS)] if kind != "read_error" else errno.EIO
            raise OSError(code, os.strerror(code), str(where))

    def _draw(self, kind: str) -> int:
        """A large number where this call meets the fault, else 0."""
        rate = getattr(self.rates, kind)
        with self._lock:
            self._calls[kind] += 1
            text = f"{self._seed} {kind} {self._calls[kind]}".encode()
            draw = int.from_bytes(blake2b(text, digest_size=16).digest())
            if draw % 1000 >= rate:
                return 0
            self.met[kind] += 1
        return draw // 1000 | 1 << 80


class FullFiles(PassedOn):
    """A device with room for `budget_bytes` of segment files: beyond that nothing can be preallocated."""

    def __init__(self, files: Files, budget_bytes: int) -> None:
        super().__init__(files)
        self.budget_bytes = budget_bytes
        self._sizes: dict[Path, int] = {}

    def create(self, path: Path, size_bytes: int) -> int:
        if sum(self._sizes.values()) + size_bytes > self.budget_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        fd = super().create(path, size_bytes)
        self._sizes[path] = size_bytes
        return fd

    def remove(self, path: Path) -> None:
        super().remove(path)
        self._sizes.pop(path, None)


class BrokenFiles(PassedOn):
    """Fails with `code` from now on for each kind of call that is named in `broken`."""

    def __init__(self, files: Files, code: int = errno.EIO) -> None:
        super().__init__(files)
        self.code = code
        self.broken: set[str] = set()

    def create(self, path: Path, size_bytes: int) -> int:
        self._check("create")
        return super().create(path, size_bytes)

    def write(self, fd: int, parts: Sequence[memoryview], offset: int) -> None:
        self._check("write")
        super().write(fd, parts, offset)

    def read(self, fd: int, parts: Sequence[memoryview], offset: int) -> None:
        self._check("read")
        super().read(fd, parts, offset)

    def sync(self, fd: int) -> None:
        self._check("sync")
        super().sync(fd)

    def remove(self, path: Path) -> None:
        self._check("remove")
        super().remove(path)

    def _check(self, kind: str) -> None:
        if kind in self.broken:
            raise OSError(self.code, os.strerror(self.code))


class HangingFiles(PassedOn):
    """While `hang` is set, calls of the kinds in `kinds` wait, then do what they were to do."""

    def __init__(self, files: Files, kinds: Sequence[str] = ("read",)) -> None:
        super().__init__(files)
        self.kinds = set(kinds)
        self._free = threading.Event()
        self._free.set()
        self._waiting = 0
        self._changed = threading.Condition()

    def hang(self) -> None:
        self._free.clear()

    def release(self) -> None:
        self._free.set()

    def wait_until_hanging(self, count: int = 1, seconds: float = 30.0) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._waiting >= count, seconds), f"{self._waiting} wait"

    def write(self, fd: int, parts: Sequence[memoryview], offset: int) -> None:
        self._pass("write")
        super().write(fd, parts, offset)

    def read(self, fd: int, parts: Sequence[memoryview], offset: int) -> None:
        self._pass("read")
        super().read(fd, parts, offset)

    def sync(self, fd: int) -> None:
        self._pass("sync")
        super().sync(fd)

    def _pass(self, kind: str) -> None:
        if kind not in self.kinds or self._free.is_set():
            return
        self._count(1)
        try:
            assert self._free.wait(60), "never released"
        finally:
            self._count(-1)

    def _count(self, change: int) -> None:
        with self._changed:
            self._waiting += change
            self._changed.notify_all()


def _aligned(data: bytes) -> NDArray[np.uint8]:
    """A copy that O_DIRECT takes."""
    memory = np.empty(len(data) + SECTOR_BYTES, np.uint8)
    start = -memory.ctypes.data % SECTOR_BYTES
    memory[start : start + len(data)] = np.frombuffer(data, np.uint8)
    return memory[start : start + len(data)]


def _byte(parts: Sequence[memoryview], at: int) -> int:
    for part in parts:
        if at < part.nbytes:
            return part.cast("B")[at]
        at -= part.nbytes
    raise IndexError(at)


def _overwrite(parts: Sequence[memoryview], start: int, data: bytes) -> None:
    """From `start` on, as far as parts and data reach."""
    for part in parts:
        if start < part.nbytes:
            piece = data[: part.nbytes - start]
            part.cast("B")[start : start + len(piece)] = piece
            data, start = data[len(piece) :], 0
            if not data:
                return
        else:
            start -= part.nbytes
