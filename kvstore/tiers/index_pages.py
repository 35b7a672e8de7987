"""Pages of an LMDB file (0.9, data version 1) as they lie there, read without LMDB; and what its head says.

LMDB trusts its file: a length or an offset that is wrong leads it out of its map, and the process dies. Here
pages are copied before they are looked at, many at a time. What is in one is covered in index_nodes.py, how
they hang together in index_check.py. Numbers have the byte order of the machine.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

__all__ = ["Head", "PageFault", "PageFile", "Pages", "Tree", "read_head", "tree_of"]

# Numbers of pages.
Pages = NDArray[np.intp]

META = 8
MAGIC, VERSION = 0xBEEFC0DE, 1
PAGE_BYTES_MIN, PAGE_BYTES_MAX = 512, 1 << 16
# As many as stay in the processor's cache while they are looked at.
PAGES_TOGETHER = 512

_TREE = np.dtype(
    [
        ("pad", "u4"),
        ("flags", "u2"),
        ("depth", "u2"),
        ("branch_pages", "u8"),
        ("leaf_pages", "u8"),
        ("overflow_pages", "u8"),
        ("entries", "u8"),
        ("root", "u8"),
    ]
)
_META = np.dtype(
    [
        ("number", "u8"),
        ("pad", "u2"),
        ("flags", "u2"),
        ("unused", "u4"),
        ("magic", "u4"),
        ("version", "u4"),
        ("address", "u8"),
        ("map_bytes", "u8"),
        ("free", _TREE),
        ("main", _TREE),
        ("last_page", "u8"),
        ("transaction", "u8"),
    ]
)
TREE_BYTES = _TREE.itemsize


class PageFault(Exception):
    """Something that LMDB would not have left so."""


class Tree(Struct, frozen=True, kw_only=True):
    """`depth` 0: nothing is in it, and `root` means nothing."""

    flags: int
    depth: int
    entries: int
    root: int


class Head(Struct, frozen=True, kw_only=True):
    """What the newer of the two meta pages says. `free`: the pages that are in no table."""

    page_bytes: int
    last_page: int
    transaction: int
    free: Tree
    main: Tree


class PageFile:
    """Reads pages by number. OSError where the device fails."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        status = os.fstat(self._fd)
        self.size = status.st_size if stat.S_ISREG(status.st_mode) else 0
        self.page_bytes = PAGE_BYTES_MIN

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    @property
    def page_count(self) -> int:
        """Whole pages."""
        return self.size // self.page_bytes

    def read_at(self, offset: int, size: int) -> bytes:
        data = os.pread(self._fd, size, offset)
        if len(data) < size:
            raise PageFault(f"it ends before {offset + size} bytes")
        return data

    def read(self, numbers: Pages) -> NDArray[np.uint8]:
        """A row each. They are in the file. Neighbours are read together."""
        pages = np.empty((numbers.size, self.page_bytes), np.uint8)
        begins = np.flatnonzero(np.diff(numbers, prepend=-2) != 1).tolist()
        for begin, end in zip(begins, [*begins[1:], numbers.size], strict=True):
            offset = int(numbers[begin]) * self.page_bytes
            if os.preadv(self._fd, [pages[begin:end].data], offset) < (end - begin) * self.page_bytes:
                raise PageFault(f"page {numbers[begin]} or one behind it can't be read")
        return pages

    def read_together(self, numbers: Pages) -> Iterator[tuple[Pages, NDArray[np.uint8]]]:
        """All of them, some at a time, with their numbers."""
        for start in range(0, numbers.size, PAGES_TOGETHER):
            some = numbers[start : start + PAGES_TOGETHER]
            yield some, self.read(some)


def read_head(file: PageFile) -> Head | None:
    """Also tells `file` how long a page is. None where LMDB itself sees that this is none of its files."""
    if file.size < _META.itemsize:
        return None
    metas = [_read_meta(file, 0)]
    file.page_bytes = int(metas[0]["free"]["pad"])
    size = file.page_bytes
    if not (PAGE_BYTES_MIN <= size <= PAGE_BYTES_MAX) or size & (size - 1):
        raise PageFault(f"pages of {size} bytes")
    if file.size < size + _META.itemsize:
        return None
    metas.append(_read_meta(file, size))
    for number, meta in enumerate(metas):
        if meta["magic"] != MAGIC or meta["version"] != VERSION or not meta["flags"] & META:
            return None
        if meta["number"] != number or meta["free"]["pad"] != size:
            raise PageFault(f"meta page {number}: another number, or pages of another size")
    newer = metas[int(metas[1]["transaction"] > metas[0]["transaction"])]
    return Head(
        page_bytes=size,
        last_page=int(newer["last_page"]),
        transaction=int(newer["transaction"]),
        free=_tree(newer["free"]),
        main=_tree(newer["main"]),
    )


def tree_of(record: bytes) -> Tree:
    """As it stands in the record of a table."""
    if len(record) != TREE_BYTES:
        raise PageFault(f"a table of {len(record)} bytes")
    return _tree(np.frombuffer(record, _TREE)[0])


def _read_meta(file: PageFile, offset: int) -> Any:
    return np.frombuffer(file.read_at(offset, _META.itemsize), _META)[0]


def _tree(fields: Any) -> Tree:
    return Tree(
        flags=int(fields["flags"]),
        depth=int(fields["depth"]),
        entries=int(fields["entries"]),
        root=int(fields["root"]),
    )
