"""The index in LMDB: each method is one transaction.

What is right, how much there may be and what becomes of faults is decided above, in disk.py.
Errors of LMDB (`DiskFault`) go through as they are.
"""

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import lmdb

from kvstore.tiers.disk_environment import DATA_FILE, open_environment
from kvstore.tiers.disk_format import BlockEntry, Geometry, pack_name_row, unpack_name_row
from kvstore.tiers.disk_index import FoundBlocks, read_index
from kvstore.tiers.disk_records import count_use
from kvstore.tiers.names import NameKind, NameRow

__all__ = ["REPAIR_FOLDER", "BlockTable", "DiskFault", "Removed"]

log = logging.getLogger(__name__)

T = TypeVar("T")
DiskFault = (lmdb.Error, OSError)
# A block that is in the index no more.
Removed = tuple[bytes, BlockEntry]


# Where a shorter copy of the index is made; gone when it has taken the other's place.
COPY_FOLDER = "compacting"
# The same of a repair.
REPAIR_FOLDER = "repairing"
# The most that deleting at the start may add to the index, until it is written anew.
WORK_BYTES = 64 << 20
# No entry of a block takes less of the file.
ENTRY_BYTES_MIN = 64


class BlockTable:
    def __init__(self, folder: Path, map_bytes: int) -> None:
        self._folder = folder
        self._map_bytes = map_bytes
        # What a start, or a repair, that ended half-way has left. It counts towards the cap.
        for name in (COPY_FOLDER, REPAIR_FOLDER):
            shutil.rmtree(folder / name, ignore_errors=True)
        self._env, self._tables = open_environment(folder, map_bytes)
        self.page_bytes: int = self._env.stat()["psize"]

    def widen_map(self) -> None:
        """For transactions that delete at the start, when the map is no more than the file: each copies the
        pages that it changes, and what one frees is used again only two later. `set_map` ends it."""
        self.set_map(max(self._map_bytes, self.file_bytes + min(4 * self.file_bytes, WORK_BYTES)))

    def set_map(self, map_bytes: int) -> None:
        """The most that the file may take; what it takes already is the least. Only before any thread uses
        the table."""
        end = (self._env.info()["last_pgno"] + 1) * self.page_bytes
        self._map_bytes = max(map_bytes, end)
        self._env.set_mapsize(self._map_bytes)

    @property
    def file_bytes(self) -> int:
        return (self._folder / DATA_FILE).stat().st_size

    def compact(self) -> None:
        """Writes the file anew without its free pages: alone it never becomes shorter. DiskFault where that
        fails; then it is as it was. Only before any thread uses the table."""
        copy = self._folder / COPY_FOLDER
        shutil.rmtree(copy, ignore_errors=True)
        try:
            copy.mkdir(mode=0o700)
            self._env.copy(str(copy), compact=True)
            _sync(copy / DATA_FILE)
            self._env.close()
            (copy / DATA_FILE).replace(self._folder / DATA_FILE)
            _sync(self._folder)
        finally:
            shutil.rmtree(copy, ignore_errors=True)
            self._env.close()
            self._env, self._tables = open_environment(self._folder, self._map_bytes)

    def read_names(self) -> list[NameRow]:
        """ValueError where a row is damaged on which it depends who may have which block."""
        rows: list[NameRow] = []
        with self._begin_reading() as txn:
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
        with self._begin_reading() as txn:
            # Two cursors, as pairs in which to hand both over cost more than to walk twice.
            names = txn.cursor(db=table).iternext(keys=True, values=False)
            records = txn.cursor(db=table).iternext(keys=False, values=True)
            count = min(txn.stat(table)["entries"], self.file_bytes // ENTRY_BYTES_MIN)
            return read_index(names, records, count)

    def read_geometry(self) -> Geometry | None:
        """None before the first block. ValueError where it is damaged."""
        with self._begin_reading() as txn:
            record = txn.get(b"geometry", db=self._tables["meta"])
        return Geometry.unpack(record) if record is not None else None

    def read_uses(self) -> dict[bytes, bytes]:
        """By block name."""
        with self._begin_reading() as txn:
            return dict(txn.cursor(db=self._tables["uses"]))

    def read_sessions(self) -> dict[bytes, bytes]:
        with self._begin_reading() as txn:
            return dict(txn.cursor(db=self._tables["sessions"]))

    def find(self, names: Iterable[bytes]) -> list[bytes]:
        """Their records, empty for those that aren't there."""
        table = self._tables["blocks"]
        with self._begin_reading() as txn:
            return [txn.get(name, b"", db=table) for name in names]

    def names_after(self, name: bytes, count: int) -> list[bytes]:
        """In the order of names; fewer at the end."""
        with self._begin_reading() as txn:
            cursor = txn.cursor(db=self._tables["blocks"])
            if not cursor.set_range(name + b"\0"):
                return []
            return list(islice(cursor.iternext(keys=True, values=False), count))

    def put(
        self, rows: Iterable[NameRow], geometry: Geometry | None, blocks: Mapping[bytes, BlockEntry]
    ) -> list[Removed]:
        """All of it or nothing. Returns what stood under these names before."""

        def work(txn: Any) -> list[Removed]:
            if geometry is not None:
                txn.put(b"geometry", geometry.pack(), db=self._tables["meta"])
            for row in rows:
                txn.put(row.name, pack_name_row(row), db=self._tables[row.kind])
            removed: list[Removed] = []
            for name, entry in blocks.items():
                before = txn.replace(name, entry.pack(name), db=self._tables["blocks"])
                if before is not None:
                    removed += _read_removed(name, before)
            return removed

        return self._transact(work)

    def remove(self, names: Iterable[bytes]) -> list[Removed]:
        """Names that aren't there are passed over."""

        def work(txn: Any) -> list[Removed]:
            return [removed for name in names for removed in self._remove_one(txn, name)]

        return self._transact(work)

    def remove_if(self, records: Mapping[bytes, bytes]) -> tuple[list[bytes], list[Removed]]:
        """Removes blocks whose records are still these: they may have been stored again. Returns their names,
        and what can be read of them."""

        def work(txn: Any) -> tuple[list[bytes], list[Removed]]:
            same = [
                name for name, record in records.items() if txn.get(name, db=self._tables["blocks"]) == record
            ]
            return same, [removed for name in same for removed in self._remove_one(txn, name)]

        return self._transact(work)

    def note_uses(self, names: Iterable[bytes], time_ns: int) -> None:
        """Of those that are there."""

        def work(txn: Any) -> None:
            # In the order in which they were used: each a nanosecond after the one before.
            for place, name in enumerate(names):
                if txn.get(name, db=self._tables["blocks"]) is not None:
                    record = txn.get(name, b"", db=self._tables["uses"])
                    txn.put(name, count_use(record, time_ns + place), db=self._tables["uses"])

        self._transact(work)

    def put_sessions(self, records: Mapping[bytes, bytes], forgotten: Iterable[bytes]) -> None:
        def work(txn: Any) -> None:
            for name in forgotten:
                txn.delete(name, db=self._tables["sessions"])
            for name, record in records.items():
                txn.put(name, record, db=self._tables["sessions"])

        self._transact(work)

    def note(self, name: bytes) -> bytes:
        """Empty where there is none."""
        with self._env.begin() as txn:
            record: bytes = txn.get(name, b"", db=self._tables["meta"])
        return record

    def put_note(self, name: bytes, record: bytes) -> None:
        self._transact(lambda txn: txn.put(name, record, db=self._tables["meta"]))

    def clear(self) -> None:
        """Forgets the blocks, the sessions, the geometry, and the namespaces with their sizes. Other names
        stay."""

        def work(txn: Any) -> None:
            for table in ("blocks", "uses", "sessions", NameKind.NAMESPACE):
                txn.drop(self._tables[table], delete=False)
            txn.delete(b"geometry", db=self._tables["meta"])

        self._transact(work)

    def close(self) -> None:
        self._env.close()

    def _remove_one(self, txn: Any, name: bytes) -> list[Removed]:
        record = txn.pop(name, db=self._tables["blocks"])
        txn.delete(name, db=self._tables["uses"])
        return _read_removed(name, record) if record is not None else []

    def _begin_reading(self) -> Any:
        """Processes killed while they read, a tool's say, leave their places in the table of readers
        taken; where these fill it, they are cleared."""
        try:
            return self._env.begin()
        except lmdb.ReadersFullError:
            self._env.reader_check()
            return self._env.begin()

    def _transact(self, work: Callable[[Any], T]) -> T:
        """Each commit goes through here. It is durable when this returns; whether it is when this raises
        isn't known before the next one.

        LMDB gives the pages freed by one transaction out again only after another one, and not while somebody
        reads what was before it, be it a process that was killed. So where the map is full, the dead are
        cleared away, a transaction goes by, and `work` is tried once more."""
        try:
            with self._env.begin(write=True) as txn:
                return work(txn)
        except lmdb.MapFullError:
            self._env.reader_check()
            with self._env.begin(write=True) as txn:
                txn.put(b"turned", time.time_ns().to_bytes(8), db=self._tables["meta"])
            with self._env.begin(write=True) as txn:
                return work(txn)


def _read_removed(name: bytes, record: bytes) -> list[Removed]:
    try:
        return [(name, BlockEntry.unpack(name, record))]
    except ValueError:
        return []  # It was not counted when it was found at the start, either.


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
