"""Blocks in LMDB: each method is one transaction over the index and the bytes.

What is right, how much there may be and what becomes of faults is decided above, in disk.py.
Errors of LMDB (`DiskFault`) go through as they are.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import lmdb
import numpy as np
from numpy.typing import NDArray

from kvstore.core.types import NamespaceId
from kvstore.tiers.disk_folder import open_environment
from kvstore.tiers.disk_format import (
    BlockEntry,
    checksum_of,
    namespace_of,
    pack_name_row,
    stored_bytes,
    unpack_name_row,
)
from kvstore.tiers.disk_index import FoundBlocks, read_index
from kvstore.tiers.names import NameKind, NameRow

__all__ = ["BlockTable", "DiskFault", "Held", "NewBlock"]

log = logging.getLogger(__name__)

T = TypeVar("T")
DiskFault = (lmdb.Error, OSError)
# Bytes of the cap by namespace; as a change, below zero where there is less.
Held = Counter[NamespaceId]
# A block's entry and its parts, one a rank.
NewBlock = tuple[BlockEntry, Sequence[memoryview]]


class BlockTable:
    def __init__(self, folder: Path, map_bytes: int) -> None:
        self._env, self._tables = open_environment(folder, map_bytes)
        self.page_bytes: int = self._env.stat()["psize"]

    def widen(self, headroom_bytes: int) -> None:
        """Room for so many bytes behind the end of what is there. Only before any thread uses the table."""
        end = (self._env.info()["last_pgno"] + 1) * self.page_bytes
        self._env.set_mapsize(max(self._env.info()["map_size"], end + headroom_bytes))

    def read_names(self) -> list[NameRow]:
        """ValueError where a row is damaged on which it depends who may have which block."""
        rows: list[NameRow] = []
        with self._env.begin() as txn:
            for kind in NameKind:
                for name, record in txn.cursor(db=self._tables[kind]):
                    try:
                        rows.append(unpack_name_row(kind, name, record))
                    except ValueError as error:
                        # A writer's name only tells people where a block has come from.
                        if kind is not NameKind.WRITER:
                            raise
                        log.warning("%s: %s; it is passed over", self._env.path(), error)
        return rows

    def read_index(self) -> tuple[FoundBlocks, list[bytes]]:
        """All entries, and the names of those that can't be read."""
        table = self._tables["blocks"]
        with self._env.begin() as txn:
            # Two cursors, as pairs in which to hand both over cost more than to walk twice.
            names = txn.cursor(db=table).iternext(keys=True, values=False)
            return read_index(names, txn.cursor(db=table).iternext(keys=False, values=True))

    def put(self, rows: Iterable[NameRow], blocks: Mapping[bytes, NewBlock]) -> Held:
        """Names and blocks, all or nothing. Returns by how much what is held has changed."""

        def work(txn: Any) -> Held:
            for row in rows:
                txn.put(row.name, pack_name_row(row), db=self._tables[row.kind])
            change = Held()
            for name, (entry, parts) in blocks.items():
                change.subtract(self._remove_one(txn, name))
                txn.put(name, entry.pack(name), db=self._tables["blocks"])
                # One part needs no copy on its way into the map.
                value = parts[0] if len(parts) == 1 else b"".join(parts)
                txn.put(name, value, db=self._tables["bytes"])
                change[namespace_of(name)] += stored_bytes(entry.size, self.page_bytes)
            return change

        return self._transact(work)

    def load(self, name: bytes, out: Sequence[NDArray[np.uint8]]) -> tuple[bytes, str]:
        """Fills `out`. Returns the index record as it stood and what is wrong with the block, if anything."""
        with self._env.begin(buffers=True) as txn:
            record = bytes(txn.get(name, b"", db=self._tables["blocks"]))
            value = memoryview(txn.get(name, b"", db=self._tables["bytes"]))
            return record, _fill(name, record, value, out)

    def remove(self, names: Iterable[bytes]) -> Held:
        """Returns by how much what is held has changed; names that aren't there change nothing."""

        def work(txn: Any) -> Held:
            change = Held()
            for name in names:
                change.subtract(self._remove_one(txn, name))
            return change

        return self._transact(work)

    def remove_if(self, name: bytes, record: bytes) -> Held:
        """Removes a block whose index record is still this one: it may have been stored again."""

        def work(txn: Any) -> Held:
            change = Held()
            if txn.get(name, b"", db=self._tables["blocks"]) == record:
                change.subtract(self._remove_one(txn, name))
            return change

        return self._transact(work)

    def close(self) -> None:
        self._env.close()

    def _remove_one(self, txn: Any, name: bytes) -> Held:
        record = txn.get(name, b"", db=self._tables["blocks"])
        txn.delete(name, db=self._tables["blocks"])
        txn.delete(name, db=self._tables["bytes"])
        try:
            return Held(
                {namespace_of(name): stored_bytes(BlockEntry.unpack(name, record).size, self.page_bytes)}
            )
        except ValueError:
            return Held()  # Not there, or not counted when it was found at the start.

    def _transact(self, work: Callable[[Any], T]) -> T:
        """LMDB gives the pages freed by one transaction out again only after another one. So where
        the map is full, one goes by, and `work` is tried once more."""
        try:
            with self._env.begin(write=True) as txn:
                return work(txn)
        except lmdb.MapFullError:
            with self._env.begin(write=True) as txn:
                txn.put(b"turned", time.time_ns().to_bytes(8), db=self._tables["meta"])
            with self._env.begin(write=True) as txn:
                return work(txn)


def _fill(name: bytes, record: bytes, value: memoryview, out: Sequence[NDArray[np.uint8]]) -> str:
    """The checksum is that of the copy: what it vouches for is what lies in the frames."""
    if not record:
        return "not there"
    try:
        entry = BlockEntry.unpack(name, record)
    except ValueError as error:
        return str(error)
    wanted = sum(part.nbytes for part in out)
    if not entry.size == value.nbytes == wanted:
        return f"{value.nbytes} bytes, where the index says {entry.size} and the frame takes {wanted}"
    start = 0
    for part in out:
        part[:] = np.frombuffer(value[start : start + part.nbytes], np.uint8)
        start += part.nbytes
    return "" if checksum_of(name, [part.data for part in out]) == entry.checksum else "wrong checksum"
