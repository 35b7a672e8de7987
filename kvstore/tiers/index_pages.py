"""Pages of an LMDB file (0.9, data version 1) as they lie there: read and looked at without LMDB.

LMDB trusts its file: a length or an offset that is wrong leads it out of its map, and the process dies. Here
pages are copied before they are looked at, many at a time, and nothing in one leads anywhere before it was
checked. How pages hang together is covered in index_check.py. Numbers have the byte order of the machine.
"""

import os
import stat
from collections.abc import Iterator
from itertools import islice
from operator import lt
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

__all__ = [
    "BIG_DATA",
    "BRANCH",
    "LEAF",
    "NODE_BYTES",
    "OVERFLOW",
    "SUB_TREE",
    "Head",
    "Nodes",
    "PageFault",
    "PageFile",
    "Pages",
    "Tree",
    "nodes_of",
    "read_head",
    "tree_of",
]

# Numbers of pages.
Pages = NDArray[np.intp]

BRANCH, LEAF, OVERFLOW, META = 1, 2, 4, 8
# A node in a leaf whose record lies in overflow pages; and one that is a table.
BIG_DATA, SUB_TREE = 1, 2
MAGIC, VERSION = 0xBEEFC0DE, 1
HEAD_BYTES, NODE_BYTES, BIG_DATA_BYTES, KEY_BYTES_MAX = 16, 8, 8, 511
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


class Nodes(Struct, frozen=True, kw_only=True):
    """What is in some pages of one kind: columns, in step, page after page and by key in each.

    `data`: bytes of the pages. `page`: which of these pages a node is in. `at`: where in `data` it begins;
    its key stands NODE_BYTES behind that. `number`: of a branch's node the page below it; of a leaf's how
    many bytes its record has; that follows the key."""

    data: NDArray[np.uint8]
    page: Pages
    at: NDArray[np.intp]
    flags: NDArray[np.uint16]
    key_bytes: NDArray[np.intp]
    number: NDArray[np.intp]

    def keys(self, places: Pages) -> list[bytes]:
        sizes = self.key_bytes[places]
        starts = self.at[places] + NODE_BYTES
        if sizes.size and (sizes == sizes[0]).all():
            keys: list[bytes] = self._gather(starts, f"V{sizes[0]}").tolist()
            return keys
        ends = (starts + sizes).tolist()
        return [self.data[start:end].tobytes() for start, end in zip(starts.tolist(), ends, strict=True)]

    def ascend(self) -> NDArray[np.bool_]:
        """Of each node but the last whether its key is less than that of the next, as bytes."""
        size = int(self.key_bytes.max(initial=1))
        if (self.key_bytes == size).all():
            # Of one length: so it makes no difference that numpy does not see zeros at the end.
            keys = self._gather(self.at + NODE_BYTES, f"S{size}")
            return keys[:-1] < keys[1:]
        some = self.keys(np.arange(self.at.size))
        return np.fromiter(map(lt, some, islice(some, 1, None)), np.bool_, len(some) - 1)

    def record(self, place: int) -> bytes:
        """Of a leaf's node that has it there: eight bytes, a page's number, where it is BIG_DATA."""
        start = int(self.at[place] + NODE_BYTES + self.key_bytes[place])
        size = BIG_DATA_BYTES if self.flags[place] == BIG_DATA else int(self.number[place])
        return self.data[start : start + size].tobytes()

    def _gather(self, starts: NDArray[np.intp], dtype: str) -> NDArray[Any]:
        """What stands at these bytes of `data`, and not behind its end."""
        count = self.data.size - np.dtype(dtype).itemsize + 1
        return np.ndarray((count,), dtype, self.data.data, strides=(1,))[starts]


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


def nodes_of(pages: NDArray[np.uint8], numbers: Pages, kind: int, keys_min: int) -> Nodes:
    """What is in these pages, all BRANCH or all LEAF, with so many keys each at least. PageFault where one is
    of another kind or of another number, or where what is in it does not fill it without gaps."""
    size = pages.shape[1]
    words = pages.view(np.uint16)
    lower, upper = words[:, 6].astype(np.intp), words[:, 7].astype(np.intp)
    _expect(pages[:, :8].view(np.uint64)[:, 0] == numbers.astype(np.uint64), numbers, "another's number")
    _expect(words[:, 5] == kind, numbers, "another kind of page")
    bounds = (lower >= HEAD_BYTES + 2 * keys_min) & (lower <= upper) & (upper <= size)
    _expect(bounds & (lower % 2 == 0) & (upper % 2 == 0), numbers, "wrong bounds")
    counts = (lower - HEAD_BYTES) // 2
    page = np.repeat(np.arange(numbers.size), counts)
    place = np.arange(page.size) - np.repeat(np.cumsum(counts) - counts, counts)
    at = words[page, HEAD_BYTES // 2 + place].astype(np.intp)
    inside = (at >= upper[page]) & (at <= size - NODE_BYTES) & (at % 2 == 0)
    _expect(inside, numbers[page], "a node outside the page")
    low, high, flags, key_bytes = np.moveaxis(
        words.ravel()[((page * size + at) // 2)[:, None] + np.arange(4)], 1, 0
    )
    number = low.astype(np.intp) | high.astype(np.intp) << 16
    key_bytes = key_bytes.astype(np.intp)
    if kind == BRANCH:
        number |= flags.astype(np.intp) << 32
        length = NODE_BYTES + key_bytes
        good = key_bytes <= KEY_BYTES_MAX
    else:
        length = NODE_BYTES + key_bytes + np.where(flags == BIG_DATA, BIG_DATA_BYTES, number)
        good = (key_bytes <= KEY_BYTES_MAX) & (key_bytes > 0) & (flags <= SUB_TREE)
    _expect(good & (at + length <= size), numbers[page], "a node of wrong size")
    nodes = Nodes(
        data=pages.reshape(-1),
        page=page,
        at=page * size + at,
        flags=flags,
        key_bytes=key_bytes,
        number=number,
    )
    _expect_filled(numbers, nodes, nodes.at + length + length % 2, upper, size)
    return nodes


def _expect_filled(numbers: Pages, nodes: Nodes, ends: Pages, upper: Pages, size: int) -> None:
    """The first node begins at `upper`, each other where one ends, and the last one ends with the page."""
    order = np.argsort(nodes.at)
    begins, ends = nodes.at[order], ends[order]
    # Sorted, the nodes of a page are still where they were, in another order.
    is_first = np.diff(nodes.page, prepend=-1) != 0
    expected = np.append(begins[1:], 0)
    is_last = np.append(is_first[1:], True)
    expected[is_last] = (nodes.page[is_last] + 1) * size
    page = nodes.page[is_first]
    why = "nodes with gaps, or over each other"
    _expect(begins[is_first] == page * size + upper[page], numbers[page], why)
    _expect(ends == expected, numbers[nodes.page], why)


def _expect(good: NDArray[np.bool_], numbers: Pages, why: str) -> None:
    if not good.all():
        raise PageFault(f"page {numbers[good.argmin()]}: {why}")


def _read_meta(file: PageFile, offset: int) -> Any:
    return np.frombuffer(file.read_at(offset, _META.itemsize), _META)[0]


def _tree(fields: Any) -> Tree:
    return Tree(
        flags=int(fields["flags"]),
        depth=int(fields["depth"]),
        entries=int(fields["entries"]),
        root=int(fields["root"]),
    )
