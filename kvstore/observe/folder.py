"""The journal's folder: numbered segments, never more bytes in all than it was given.

One service at a time holds it. Segments of earlier runs stay until room is needed, the oldest goes first:
a service that is restarted after a bug does not wipe out what led to it.
"""

import fcntl
import os
import re
from pathlib import Path
from typing import Self

from kvstore.core.errors import JournalInvalid

__all__ = ["SEGMENT_NAME", "JournalFolder", "find_segments", "segment_name"]

SEGMENT_NAME = re.compile(r"[0-9]{10}\.journal")
# Runs may be short: a folder must not fill with tiny files.
SEGMENTS_MAX = 1_024


def segment_name(number: int) -> str:
    return f"{number:010}.journal"


def find_segments(folder: Path) -> list[Path]:
    """Oldest first."""
    return sorted(path for path in folder.iterdir() if SEGMENT_NAME.fullmatch(path.name))


class JournalFolder:
    """Claimed by one process for as long as the context lasts. Segments are the affair of the thread
    that writes (`writing.py`)."""

    def __init__(self, path: Path, lock: int, bytes_max: int) -> None:
        self.path = path
        self.bytes_max = bytes_max
        self._lock = lock
        # Number and bytes of what is there, oldest first; the last one may be open.
        self._segments = [(int(each.stem), each.stat().st_size) for each in find_segments(path)]
        self._open = -1

    @classmethod
    def claim(cls, path: Path, bytes_max: int) -> Self:
        """Makes the folder if need be, closes it to others and locks it."""
        lock = -1
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            strange = sorted(name for name in os.listdir(path) if not SEGMENT_NAME.fullmatch(name))
            if strange:
                found = f"holds what is not kvstore's: {', '.join(strange[:3])}"
                raise _refused(path, found, "name an empty or a new folder")
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.fchmod(lock, 0o700)
            return cls(path, lock, bytes_max)
        except BlockingIOError as error:
            os.close(lock)
            raise _refused(path, "another service writes to it", "name another folder") from error
        except OSError as error:
            if lock >= 0:
                os.close(lock)
            found = error.strerror or str(error)
            raise _refused(path, found, "name a folder that the service may write to") from error

    def begin_segment(self) -> None:
        self.close_segment()
        number = self._segments[-1][0] + 1 if self._segments else 1
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._open = os.open(self.path / segment_name(number), flags, 0o600)
        self._segments.append((number, 0))

    def append(self, data: bytes) -> None:
        """To the segment begun last. Raises `OSError` where there is no room, even without all others."""
        self._make_room(len(data))
        number, size = self._segments[-1]
        self._segments[-1] = (number, size + len(data))
        view = memoryview(data)
        while view:
            view = view[os.write(self._open, view) :]

    def close_segment(self) -> None:
        if self._open >= 0:
            os.close(self._open)
            self._open = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Gives the folder free. What hangs in a write to it is left alone."""
        os.close(self._lock)

    def _make_room(self, size: int) -> None:
        total = sum(each for _, each in self._segments) + size
        while total > self.bytes_max or len(self._segments) > SEGMENTS_MAX:
            if len(self._segments) < 2:
                raise OSError(f"{size} bytes at once are more than a journal of {self.bytes_max} holds")
            number, gone = self._segments.pop(0)
            (self.path / segment_name(number)).unlink(missing_ok=True)
            total -= gone


def _refused(path: Path, found: str, remedy: str) -> JournalInvalid:
    return JournalInvalid(found, field="--journal", value=path, remedy=remedy)
