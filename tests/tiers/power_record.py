"""Power loss, first half: a record of all that the disk tier asks of the operating system and of LMDB.

It stands at the door itself: while it records, the functions of `os` that change files, and LMDB's
environments, are replaced by ones that do the same and note it. So no sync that the tier makes, wherever
it is written down, can be missed, and none that it does not make can be taken for granted.

Each event has two places in one order, where it began and where it had ended, for several threads are at
work. A sync bears the names of the functions that led to it (`site`), so that a proof can leave out one.
An index commit keeps the whole file as it was after it: LMDB promises that a commit that has returned is
there whole, if the environment syncs; that promise is believed here, and only where it is made.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.tiers.lmdb_door import DATA_FILE, LmdbDoor
from tests.tiers.promises import NEVER, Deed

__all__ = ["Commit", "Event", "Inode", "Log", "Name", "Sync", "Write", "recorded"]

SITE_FRAMES = 3


@dataclass(slots=True, eq=False)
class Event:
    begin: int = NEVER
    end: int = NEVER


@dataclass(slots=True, eq=False)
class Write(Event):
    offset: int = 0
    data: bytes = b""


@dataclass(slots=True, eq=False)
class Size(Event):
    """The file's length, from then on."""

    size_bytes: int = 0


@dataclass(slots=True, eq=False)
class Sync(Event):
    """Of a file, or of the folder: then of names."""

    site: str = ""


@dataclass(slots=True, eq=False)
class Commit(Event):
    """The whole index file after it. Not durable where the environment does not sync."""

    image: bytes = b""
    durable: bool = False


@dataclass(slots=True, eq=False)
class Inode:
    """A file, whatever it is called. The index changes by commits, and by writes only where it is copied."""

    writes: list[Write] = field(default_factory=list)
    sizes: list[Size] = field(default_factory=list)
    syncs: list[Sync] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Name(Event):
    """A name in the folder comes to stand for this file, or for none."""

    inode: Inode | None = None


@dataclass(slots=True)
class Log:
    folder: Path
    names: dict[str, list[Name]] = field(default_factory=dict)
    folder_syncs: list[Sync] = field(default_factory=list)
    deeds: list[Deed] = field(default_factory=list)
    # The cap with which the folder was opened, from when on.
    caps: list[tuple[int, int]] = field(default_factory=list)
    # Files that LMDB has made a copy of itself in, by their paths, until they are called otherwise.
    copies: dict[Path, Inode] = field(default_factory=dict)
    places: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def tick(self) -> int:
        with self.lock:
            self.places += 1
            return self.places

    def inode_of(self, name: str) -> Inode | None:
        with self.lock:
            known = self.names.get(name)
            return known[-1].inode if known else None

    def inodes(self) -> list[Inode]:
        found = {id(name.inode): name.inode for names in self.names.values() for name in names}
        return [inode for inode in found.values() if inode is not None]

    def sites(self) -> set[str]:
        syncs = [sync for inode in self.inodes() for sync in inode.syncs]
        return {sync.site for sync in [*syncs, *self.folder_syncs]}

    def call(self, event: Event, do: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """An event that fails has still begun, and may have had its effect."""
        event.begin = self.tick()
        result = do(*arguments, **named)
        event.end = self.tick()
        return result


@contextmanager
def recorded(folder: Path) -> Iterator[Log]:
    """Records what happens to files in this folder until the end of the `with`."""
    log = Log(Path(os.path.realpath(folder)))
    with pytest.MonkeyPatch.context() as patch:
        _Door(log).stand(patch)
        _Index(log).stand(patch)
        yield log


class _Door:
    """The functions of `os`, as they are replaced."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._real = {name: getattr(os, name) for name in REPLACED}
        # What each descriptor stands for; the folder itself is None.
        self._open: dict[int, Inode | None] = {}

    def stand(self, patch: pytest.MonkeyPatch) -> None:
        for name in REPLACED:
            patch.setattr(os, name, getattr(self, name))

    def open(self, path: Any, flags: int, *arguments: Any, **named: Any) -> int:
        fd: int
        where = Path(os.path.realpath(path))
        if where in self._log.copies:
            fd = self._real["open"](path, flags, *arguments, **named)
            self._open[fd] = self._log.copies[where]
            return fd
        name = where.name if where.parent == self._log.folder else ""
        if not name or (where.exists() and name not in self._log.names):
            fd = self._real["open"](path, flags, *arguments, **named)
            if where == self._log.folder:
                self._open[fd] = None
            return fd
        inode = self._log.inode_of(name) if where.exists() else Inode()
        if where.exists():
            fd = self._real["open"](path, flags, *arguments, **named)
        else:
            event = Name(inode=inode)
            fd = self._log.call(event, self._real["open"], path, flags, *arguments, **named)
            self._log.names.setdefault(name, []).append(event)
        self._open[fd] = inode
        return fd

    def close(self, fd: int) -> None:
        self._open.pop(fd, None)
        self._real["close"](fd)

    def unlink(self, path: Any, **named: Any) -> None:
        where = Path(os.path.realpath(path))
        event = Name(inode=None)
        self._log.call(event, self._real["unlink"], path, **named)
        if where.parent == self._log.folder and where.name in self._log.names:
            self._log.names[where.name].append(event)

    def replace(self, source: Any, target: Any, **named: Any) -> None:
        """Both names change at once; the copy's own, in another folder, is of no interest."""
        from_, to = Path(os.path.realpath(source)), Path(os.path.realpath(target))
        event = Name(inode=self._log.copies.pop(from_, None))
        self._log.call(event, self._real["replace"], source, target, **named)
        if to.parent == self._log.folder:
            assert event.inode is not None, f"{from_} becomes {to}, and how it was written was not seen"
            self._log.names[to.name].append(event)

    def pwritev(self, fd: int, parts: Any, offset: int, *flags: Any) -> int:
        return self._write(fd, b"".join(parts), offset, self._real["pwritev"], fd, parts, offset, *flags)

    def pwrite(self, fd: int, data: Any, offset: int) -> int:
        return self._write(fd, bytes(data), offset, self._real["pwrite"], fd, data, offset)

    def posix_fallocate(self, fd: int, offset: int, length: int) -> None:
        self._size(fd, max(os.fstat(fd).st_size, offset + length), "posix_fallocate", offset, length)

    def ftruncate(self, fd: int, length: int) -> None:
        self._size(fd, length, "ftruncate", length)

    def fsync(self, fd: int) -> None:
        self._sync(fd, "fsync")

    def fdatasync(self, fd: int) -> None:
        self._sync(fd, "fdatasync")

    def _write(self, fd: int, data: bytes, offset: int, do: Callable[..., int], *arguments: Any) -> int:
        inode = self._open.get(fd)
        if inode is None:
            return do(*arguments)
        event = Write(offset=offset, data=data)
        # First noted, then done: it may reach the disk before it returns.
        inode.writes.append(event)
        done: int = self._log.call(event, do, *arguments)
        event.data = data[:done]
        return done

    def _size(self, fd: int, size_bytes: int, name: str, *arguments: Any) -> None:
        inode = self._open.get(fd)
        if inode is None:
            self._real[name](fd, *arguments)
            return
        event = Size(size_bytes=size_bytes)
        inode.sizes.append(event)
        self._log.call(event, self._real[name], fd, *arguments)

    def _sync(self, fd: int, name: str) -> None:
        if fd not in self._open:
            self._real[name](fd)
            return
        inode = self._open[fd]
        site = f"{name} in {_site(sys._getframe(2))}"
        event = Sync(site=site)
        (self._log.folder_syncs if inode is None else inode.syncs).append(event)
        self._log.call(event, self._real[name], fd)


REPLACED = (
    "open",
    "close",
    "unlink",
    "pwritev",
    "pwrite",
    "posix_fallocate",
    "ftruncate",
    "fsync",
    "fdatasync",
)


def _site(frame: FrameType | None) -> str:
    """The functions of the tiers on the way to this call, the innermost first."""
    names: list[str] = []
    while frame is not None and len(names) < SITE_FRAMES:
        if "/kvstore/tiers/" in frame.f_code.co_filename:
            names.append(frame.f_code.co_qualname)
        frame = frame.f_back
    return " < ".join(names)


class _Index(LmdbDoor):
    """The index file: made by LMDB, changed by commits alone."""

    def __init__(self, log: Log) -> None:
        super().__init__(log.folder)
        self._log = log

    def opening(self, do: Callable[[], Any]) -> Any:
        if (self._log.folder / DATA_FILE).exists():
            return do()
        inode = Inode()
        name, write, size = Name(inode=inode), Write(), Size()
        name.begin = write.begin = size.begin = self._log.tick()
        env = do()
        # What LMDB makes of a new file: pages of its own, which it does not sync before the first commit.
        write.data = (self._log.folder / DATA_FILE).read_bytes()
        size.size_bytes = len(write.data)
        name.end = write.end = size.end = self._log.tick()
        inode.writes.append(write)
        inode.sizes.append(size)
        self._log.names.setdefault(DATA_FILE, []).append(name)
        return env

    def copying(self, path: Path, do: Callable[[], Any]) -> Any:
        """LMDB does not sync it."""
        inode = Inode()
        size, write = Size(), Write()
        size.begin = write.begin = self._log.tick()
        do()
        write.data = path.read_bytes()
        size.size_bytes = len(write.data)
        size.end = write.end = self._log.tick()
        inode.sizes.append(size)
        inode.writes.append(write)
        self._log.copies[path] = inode

    def committing(self, env: Any, do: Callable[[], Any]) -> Any:
        flags = env.flags()
        event = Commit(durable=flags["sync"] and flags["metasync"] and not flags["writemap"])
        event.begin = self._log.tick()
        result = do()
        event.image = (self._log.folder / DATA_FILE).read_bytes()
        event.end = self._log.tick()
        inode = self._log.inode_of(DATA_FILE)
        assert inode is not None
        inode.commits.append(event)
        return result
