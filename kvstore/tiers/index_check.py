"""Whether LMDB can walk through its file, and change it, without leaving it: all that it may ever follow.

Those are the trees of all tables, the records in overflow pages, and the list of free pages, which it gives
out again. Asked is what LMDB relies on: each page is reached once, and from nowhere else; all leaves stand
equally deep; keys ascend, and stand between those of the branch above; what is free is in no tree. What
records say is not covered: they have checksums.

Found is the first fault. There is none in a file that LMDB has left, at whatever point it was killed.
"""

import sys
from collections.abc import Iterator
from itertools import islice
from operator import le, lt
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvstore.tiers.index_nodes import BIG_DATA, BRANCH, LEAF, SUB_TREE, Nodes, nodes_of
from kvstore.tiers.index_pages import Head, PageFault, PageFile, Pages, Tree, read_head, tree_of

__all__ = ["PageFault", "check_pages"]

# Numbers of pages that nobody has looked at yet.
Numbers = NDArray[np.uint64]

META_PAGES = 2
# The keys of the free pages' tree are numbers of transactions, and compare as such. Our tables have no flags.
FREE_FLAGS = 8
# As far as LMDB can go down.
DEPTH_MAX = 32
WORD_BYTES = 8
OVERFLOW = 4
BIG_ENDIAN_STEP = 1 if sys.byteorder == "big" else -1
_HEAD = np.dtype([("number", "u8"), ("pad", "u2"), ("flags", "u2"), ("pages", "u4")])


def check_pages(path: Path) -> None:
    """PageFault: whoever opens this file may die of it, or get wrong records. What LMDB itself refuses when
    it opens a file is passed over. OSError where it can't be read."""
    with PageFile(path) as file:
        head = read_head(file)
        if head is not None:
            _Walk(file, head).check()


class _Walk:
    def __init__(self, file: PageFile, head: Head) -> None:
        self._file = file
        self._head = head
        # Pages behind the end of the file are free at most: they were given back before they were written.
        self._reached = np.zeros(min(head.last_page + 1, file.page_count), np.bool_)

    def check(self) -> None:
        free, main = self._head.free, self._head.main
        if free.flags != FREE_FLAGS:
            raise PageFault(f"flags of the free pages: {free.flags}")
        tables = [main]
        for nodes in self._leaves(main):
            if (nodes.flags != SUB_TREE).any():
                raise PageFault("a record among the tables")
            tables += [tree_of(nodes.record(place)) for place in range(nodes.at.size)]
        for table in tables:
            if table.flags:
                raise PageFault(f"flags of a table: {table.flags}")
        for table in tables[1:]:
            for nodes in self._leaves(table):
                if (nodes.flags == SUB_TREE).any():
                    raise PageFault("a table in a table")
        self._check_free(free)

    def _check_free(self, free: Tree) -> None:
        """Each is given out once, and is nobody's."""
        numbers = np.concatenate([np.empty(0, np.uint64), *self._free_lists(free)])
        if numbers.size and (numbers.min() < META_PAGES or numbers.max() > self._head.last_page):
            raise PageFault("a free page that there is not")
        pages = numbers.astype(np.intp)
        if np.unique(pages).size != pages.size:
            raise PageFault("a page is free twice")
        if self._reached[pages[pages < self._reached.size]].any():
            raise PageFault("a page is free, and in use")

    def _free_lists(self, free: Tree) -> Iterator[Numbers]:
        for nodes in self._leaves(free):
            for place in range(nodes.at.size):
                record = nodes.record(place)
                if nodes.flags[place] == BIG_DATA:
                    offset = int.from_bytes(record, sys.byteorder) * self._head.page_bytes + _HEAD.itemsize
                    record = self._file.read_at(offset, int(nodes.number[place]))
                words = np.frombuffer(record[: len(record) // WORD_BYTES * WORD_BYTES], np.uint64)
                if not words.size or words[0] >= words.size:
                    raise PageFault("a list of free pages that is longer than its record")
                numbers = words[1 : 1 + int(words[0])]
                if (numbers[1:] >= numbers[:-1]).any():
                    raise PageFault("free pages out of order")
                yield numbers

    # --- One tree.

    def _leaves(self, tree: Tree) -> Iterator[Nodes]:
        """What is in the leaves of a tree, in the order of the file. It is right once all have been seen."""
        if not tree.depth:
            if tree.entries:
                raise PageFault("a table without pages that has records")
            return
        if tree.depth > DEPTH_MAX:
            raise PageFault(f"a tree {tree.depth} deep")
        numbers, bounds = np.array([tree.root], np.uint64), [b""]
        for _ in range(tree.depth - 1):
            numbers, bounds = self._branches(self._reach(numbers), bounds, tree)
        pages = self._reach(numbers)
        order = np.argsort(pages)
        ends, entries = list[tuple[bytes, bytes]](), 0
        for some, data in self._file.read_together(pages[order]):
            nodes = nodes_of(data, some, LEAF, 1)
            first, last = _ends_of_pages(nodes)
            _expect_ascending(nodes, some, last, tree)
            self._check_overflow(nodes)
            ends += zip(_keys(nodes, first, tree), _keys(nodes, last, tree), strict=True)
            entries += nodes.at.size
            yield nodes
        _expect_between([ends[place] for place in np.argsort(order).tolist()], bounds)
        if entries != tree.entries:
            raise PageFault(f"{entries} records in a table that should have {tree.entries}")

    def _branches(self, pages: Pages, bounds: list[bytes], tree: Tree) -> tuple[Numbers, list[bytes]]:
        """The pages below these, and the least key that each may have. That of the first one in a page is its
        page's: what stands there for a key means nothing."""
        below, least, waiting = [np.empty(0, np.uint64)], list[bytes](), iter(bounds)
        for some, data in self._file.read_together(pages):
            # LMDB allows the free pages' own tree, and no other, a branch that leads to one page.
            nodes = nodes_of(data, some, BRANCH, 1 if tree.flags == FREE_FLAGS else 2)
            first, _ = _ends_of_pages(nodes)
            is_first = np.zeros(nodes.page.size, np.bool_)
            is_first[first] = True
            keys = iter(_keys(nodes, np.flatnonzero(~is_first), tree))
            least += [next(waiting if each else keys) for each in is_first.tolist()]
            below.append(nodes.number.astype(np.uint64))
        if not all(map(lt, least, islice(least, 1, None))):
            raise PageFault("branches out of order")
        return np.concatenate(below), least

    def _check_overflow(self, nodes: Nodes) -> None:
        """Of records that don't lie in their leaf."""
        for place in np.flatnonzero(nodes.flags == BIG_DATA).tolist():
            number = int.from_bytes(nodes.record(place), sys.byteorder)
            page = self._reach(np.array([number], np.uint64))
            head = np.frombuffer(self._file.read(page).tobytes()[: _HEAD.itemsize], _HEAD)[0]
            count, size = int(head["pages"]), _HEAD.itemsize + int(nodes.number[place])
            if head["number"] != number or head["flags"] != OVERFLOW:
                raise PageFault(f"page {number}: no overflow page")
            if not size <= count * self._head.page_bytes or count > self._reached.size - number:
                raise PageFault(f"page {number}: a record of {size} bytes in {count} pages")
            self._reach(np.arange(number + 1, number + count, dtype=np.uint64))

    def _reach(self, numbers: Numbers) -> Pages:
        """For the first time. They may come from anywhere."""
        if numbers.size and (numbers.min() < META_PAGES or numbers.max() >= self._reached.size):
            raise PageFault(f"a page that there is not, of {self._reached.size}")
        pages = numbers.astype(np.intp)
        if self._reached[pages].any() or np.unique(pages).size != pages.size:
            raise PageFault("a page is reached twice")
        self._reached[pages] = True
        return pages


def _ends_of_pages(nodes: Nodes) -> tuple[Pages, Pages]:
    """The first and the last node of each page. None is without any."""
    first = np.flatnonzero(np.diff(nodes.page, prepend=-1))
    return first, np.append(first[1:], nodes.page.size) - 1


def _keys(nodes: Nodes, places: Pages, tree: Tree) -> list[bytes]:
    """Such as compare, as bytes, as they do for LMDB."""
    keys = nodes.keys(places)
    if tree.flags != FREE_FLAGS:
        return keys
    if not all(len(key) == WORD_BYTES for key in keys):
        raise PageFault("free pages of no transaction")
    return [key[::BIG_ENDIAN_STEP] for key in keys]


def _expect_ascending(nodes: Nodes, numbers: Pages, last: Pages, tree: Tree) -> None:
    if tree.flags == FREE_FLAGS:
        keys = _keys(nodes, np.arange(nodes.at.size), tree)
        ascend = np.fromiter(map(lt, keys, islice(keys, 1, None)), np.bool_, len(keys) - 1)
    else:
        ascend = nodes.ascend()
    ascend[last[:-1]] = True
    if not ascend.all():
        raise PageFault(f"page {numbers[nodes.page[ascend.argmin()]]}: keys out of order")


def _expect_between(ends: list[tuple[bytes, bytes]], bounds: list[bytes]) -> None:
    """`ends`: the first and the last key of each leaf, in the order of the tree; `bounds`: the least that
    each may have."""
    firsts, lasts = zip(*ends, strict=True)
    if not all(map(le, bounds, firsts)) or not all(map(lt, lasts, islice(bounds, 1, None))):
        raise PageFault("keys in a page that another should have")
