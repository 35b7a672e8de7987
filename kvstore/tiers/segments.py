"""The segment files of a folder: which slot is where, and files made, shortened and removed as need be.

Each is allocated whole when it is made, so that a full disk is met there and not in the middle of a block.
All are equally long but the last one, which ends where the cap does.
"""

import logging
import os
import stat
from pathlib import Path

from kvstore.core.errors import check
from kvstore.tiers.disk_format import Geometry, segment_name
from kvstore.tiers.files import Files

__all__ = ["Segments", "obstructed_in", "segments_in"]

log = logging.getLogger(__name__)


# As an entry tells it.
SEGMENT_MAX = 2**32 - 1


def segments_in(folder: Path) -> list[int]:
    """The numbers of the segments that are there: files of this folder, never what a link leads to. Of two
    names for one file it is the first: else what is written under the one would change the other."""
    seen: set[tuple[int, int]] = set()
    segments: list[int] = []
    for number in _numbers_in(folder):
        try:
            status = (folder / segment_name(number)).lstat()
        except FileNotFoundError:
            continue
        file = status.st_dev, status.st_ino
        if stat.S_ISREG(status.st_mode) and file not in seen:
            seen.add(file)
            segments.append(number)
    return segments


def obstructed_in(folder: Path) -> list[int]:
    """The numbers of which something else has the name: it is left alone, and no segment made there."""
    return sorted(set(_numbers_in(folder)).difference(segments_in(folder)))


def _numbers_in(folder: Path) -> list[int]:
    names = (name for name in os.listdir(folder) if name.startswith("segment-"))
    digits = ((name, name.removeprefix("segment-")) for name in names)
    numbers = ((name, int(text)) for name, text in digits if text.isascii() and text.isdigit())
    return sorted(
        number for name, number in numbers if number <= SEGMENT_MAX and name == segment_name(number)
    )


class Segments:
    """`slot_count` is what the cap leaves room for: slots behind it are kept only until they are emptied."""

    def __init__(self, folder: Path, files: Files, geometry: Geometry, slot_count: int) -> None:
        self.geometry = geometry
        self.slot_count = slot_count
        self._folder = folder
        self._files = files
        self._fds: dict[int, int] = {}

    @property
    def numbers(self) -> list[int]:
        return sorted(self._fds)

    def __contains__(self, segment: int) -> bool:
        return segment in self._fds

    def ends_at(self, segment: int) -> int:
        """The slot behind its last one, if it is as long as the cap lets it be."""
        first = segment * self.geometry.segment_slots
        return max(first, min(first + self.geometry.segment_slots, self.slot_count))

    def open(self, segment: int) -> bool:
        """False where it can't be opened. One of a wrong length is put right, for writes go there."""
        path = self._folder / segment_name(segment)
        wanted = self._size_bytes(segment)
        try:
            size = path.stat().st_size
            whole = self.geometry.segment_slots * self.geometry.slot_bytes
            if not wanted <= size <= whole:
                self._fds[segment] = self._resize(path, size, min(max(size, wanted), whole))
            else:
                self._fds[segment] = self._files.open(path)
        except OSError as error:
            log.error("%s can't be opened: %s", path, error)
            return False
        return True

    def make(self, segment: int) -> None:
        """OSError where there is no room for it."""
        path = self._folder / segment_name(segment)
        self._fds[segment] = self._files.create(path, self._size_bytes(segment))

    def shorten(self, segment: int) -> None:
        """Gives back what is behind the cap: the end of this segment, or all of it."""
        path = self._folder / segment_name(segment)
        size = self._size_bytes(segment)
        if os.fstat(self._fds[segment]).st_size <= size:
            return
        self._files.close(self._fds.pop(segment))
        if size:
            self._fds[segment] = self._files.create(path, size)
        else:
            self._files.remove(path)

    def place(self, slot: int) -> tuple[int, int]:
        """The descriptor and the offset in it. OSError where the segment couldn't be opened."""
        segment, index = divmod(slot, self.geometry.segment_slots)
        fd = self._fds.get(segment)
        if fd is None:
            raise FileNotFoundError(f"{self._folder / segment_name(segment)} isn't there or can't be opened")
        return fd, index * self.geometry.slot_bytes

    def size_on_disk(self) -> int:
        """Bytes, as the file system counts them."""
        return sum(os.fstat(fd).st_blocks * 512 for fd in self._fds.values())

    def close(self) -> None:
        for fd in self._fds.values():
            self._files.close(fd)
        self._fds.clear()

    def _size_bytes(self, segment: int) -> int:
        check(segment >= 0, f"segment {segment}")
        return (self.ends_at(segment) - segment * self.geometry.segment_slots) * self.geometry.slot_bytes

    def _resize(self, path: Path, size: int, wanted: int) -> int:
        """Where that isn't possible it stays; blocks that would be in what is missing can't be read."""
        try:
            return self._files.create(path, wanted)
        except OSError as error:
            log.error("%s: %d bytes long, which can't be made %d: %s", path, size, wanted, error)
            return self._files.open(path)
