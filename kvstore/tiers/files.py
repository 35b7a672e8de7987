"""The one seam between the disk tier and the files of the operating system: how segments are made, written,
read and synced.

Tests put something else in its place: faults, a device of their own, a record of what was synced when.
What it doesn't cover: LMDB's own files, and the locking and listing of the folder (disk_folder.py).

A write has reached the disk when `sync` has returned, not before: O_DIRECT goes past the page cache, yet not
past the device's own cache, nor past the file system's notes of which parts of a file were ever written.
"""

import errno
import fcntl
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

__all__ = ["ALIGNMENT", "DirectFiles", "Files", "sync_folder"]

log = logging.getLogger(__name__)

# Of addresses, lengths and offsets, all of them: what O_DIRECT asks for on any device.
ALIGNMENT = 4096
# Parts that the kernel takes in one call.
PARTS_MAX = os.sysconf("SC_IOV_MAX")


class Files(Protocol):
    """Each call blocks; all may be made from any thread, several for one descriptor at once.

    `parts` are buffers that follow one another in the file; each one's address and length, and the offset,
    are multiples of ALIGNMENT. Whatever fails is an OSError; then it isn't known how much was moved.
    """

    def create(self, path: Path, size_bytes: int) -> int:
        """Makes the file exactly so long, also where it is there already, with all its blocks, durably.

        What was missing reads as zeros. Nothing is left of a new file that can't be made.
        """

    def open(self, path: Path) -> int: ...

    def write(self, fd: int, parts: Sequence[memoryview], offset: int) -> None:
        """All of it. Durable after the next `sync`."""

    def read(self, fd: int, parts: Sequence[memoryview], offset: int) -> None:
        """Fills all parts; the end of the file before that is an error."""

    def sync(self, fd: int) -> None:
        """All writes to this file that have returned are durable; where this fails, none counts as it."""

    def remove(self, path: Path) -> None:
        """Durably. A file that isn't there is an error."""

    def close(self, fd: int) -> None: ...


class DirectFiles:
    """Past the page cache where the file system lets it, through it where not (some overlays, old tmpfs)."""

    def create(self, path: Path, size_bytes: int) -> int:
        is_new = not os.path.lexists(path)
        # Not O_DIRECT yet: where the file system can't allocate, the C library writes single bytes.
        # What a link leads to is never ours.
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if os.fstat(fd).st_size > size_bytes:
                os.ftruncate(fd, size_bytes)
            os.posix_fallocate(fd, 0, size_bytes)
            os.fsync(fd)
            sync_folder(path.parent)
        except OSError:
            if is_new:
                path.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)
        return self.open(path)

    def open(self, path: Path) -> int:
        """For reading alone where the file system, or the file's mode, lets nothing else."""
        try:
            return _open(path, os.O_RDWR)
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
                raise
            return _open(path, os.O_RDONLY)

    def write(self, fd: int, parts: Sequence[memoryview], offset: int) -> None:
        _move(os.pwritev, fd, parts, offset)

    def read(self, fd: int, parts: Sequence[memoryview], offset: int) -> None:
        _move(os.preadv, fd, parts, offset)

    def sync(self, fd: int) -> None:
        os.fdatasync(fd)

    def remove(self, path: Path) -> None:
        path.unlink()
        sync_folder(path.parent)

    def close(self, fd: int) -> None:
        os.close(fd)


def _open(path: Path, access: int) -> int:
    access |= os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, access | os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.open(path, access)


def _move(
    call: Callable[[int, list[memoryview], int], int], fd: int, parts: Sequence[memoryview], offset: int
) -> None:
    left = list(parts)
    while left:
        try:
            done = call(fd, left[:PARTS_MAX], offset)
        except OSError as error:
            # Some file systems take O_DIRECT when a file is opened and refuse it when it is used.
            if error.errno == errno.EINVAL and _stop_direct(fd):
                continue
            raise
        # In one call the kernel moves 2 GiB at most, in whole pages; less is the end of the file or disk.
        if done <= 0 or (done % ALIGNMENT and done < sum(part.nbytes for part in left)):
            raise OSError(errno.EIO, f"cut off after {max(done, 0)} bytes at {offset}")
        offset += done
        left = _behind(left, done)


def _behind(parts: list[memoryview], done: int) -> list[memoryview]:
    """What is left of the parts behind so many bytes."""
    for place, part in enumerate(parts):
        if done < part.nbytes:
            return [part[done:], *parts[place + 1 :]]
        done -= part.nbytes
    return []


def _stop_direct(fd: int) -> bool:
    """False where it wasn't direct."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    if not flags & os.O_DIRECT:
        return False
    log.warning(
        "%s: no O_DIRECT there; it is written and read through the page cache",
        os.readlink(f"/proc/self/fd/{fd}"),
    )
    fcntl.fcntl(fd, fcntl.F_SETFL, flags & ~os.O_DIRECT)
    return True


def sync_folder(folder: Path) -> None:
    """A file's name is durable only after this."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
