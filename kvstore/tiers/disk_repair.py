"""A folder put right again: a new index of what was found good, and no segment that holds none of it.

The new index is made beside the old one and takes its place by a rename, so that a repair that ends half-way
leaves the folder as it was.
"""

import logging
import os
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import lmdb
from msgspec import Struct, field

from kvstore.tiers.disk_environment import DATA_FILE, LOCK_FILE
from kvstore.tiers.disk_format import (
    FORMAT,
    MAGIC,
    TABLES,
    BlockEntry,
    Geometry,
    pack_name_row,
    segment_name,
)
from kvstore.tiers.disk_table import REPAIR_FOLDER
from kvstore.tiers.files import Files, sync_folder
from kvstore.tiers.names import NameRow
from kvstore.tiers.segments import segments_in

__all__ = ["Remains", "rebuild"]

log = logging.getLogger(__name__)

# Entries in one transaction, and what they may take at most, with all that goes with them.
PART = 4096
ENTRY_BYTES_MAX = 2048


class Remains(Struct, kw_only=True):
    """What is good of an index. `uses` are those of blocks that may be gone."""

    geometry: Geometry | None
    rows: list[NameRow]
    entries: dict[bytes, BlockEntry] = field(default_factory=dict)
    uses: dict[bytes, bytes] = field(default_factory=dict)
    sessions: dict[bytes, bytes] = field(default_factory=dict)


def rebuild(folder: Path, files: Files, remains: Remains) -> None:
    """OSError where the disk has no room for a second index, or fails."""
    aside = folder / REPAIR_FOLDER
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(mode=0o700)
    try:
        _write_index(aside, remains)
        # The old lock file goes first: it is made for the old index.
        (folder / LOCK_FILE).unlink(missing_ok=True)
        (aside / DATA_FILE).replace(folder / DATA_FILE)
        sync_folder(folder)
    except lmdb.Error as error:
        raise OSError(f"the new index can't be written: {error}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    _put_segments_right(folder, files, remains)


def _write_index(folder: Path, remains: Remains) -> None:
    map_bytes = (1 << 20) + ENTRY_BYTES_MAX * (len(remains.entries) + len(remains.rows))
    map_bytes += sum(2 * len(record) + ENTRY_BYTES_MAX for record in remains.sessions.values())
    records = _records(remains)
    with lmdb.open(str(folder), map_size=map_bytes, max_dbs=len(TABLES), mode=0o600) as env:
        tables = {name: env.open_db(name.encode()) for name in TABLES}
        while part := list(islice(records, PART)):
            with env.begin(write=True) as txn:
                for table, name, record in part:
                    txn.put(name, record, db=tables[table])


def _records(remains: Remains) -> Iterator[tuple[str, bytes, bytes]]:
    yield "meta", b"magic", MAGIC
    yield "meta", b"format", FORMAT.to_bytes(4)
    if remains.geometry is not None:
        yield "meta", b"geometry", remains.geometry.pack()
    for row in remains.rows:
        yield row.kind, row.name, pack_name_row(row)
    for name in sorted(remains.entries):
        yield "blocks", name, remains.entries[name].pack(name)
        if name in remains.uses:
            yield "uses", name, remains.uses[name]
    for name, record in remains.sessions.items():
        yield "sessions", name, record


def _put_segments_right(folder: Path, files: Files, remains: Remains) -> None:
    """Removes those of which nothing is used; the others get whole slots. The next start does the same
    with one for which it fails here."""
    used = {entry.segment for entry in remains.entries.values()}
    for segment in segments_in(folder):
        path = folder / segment_name(segment)
        try:
            if segment not in used or remains.geometry is None:
                files.remove(path)
                continue
            slot, slots = remains.geometry.slot_bytes, remains.geometry.segment_slots
            size = min(-(-os.stat(path).st_size // slot), slots) * slot
            files.close(files.create(path, size))
        except OSError as error:
            log.warning("%s can't be put right: %s", path, error)
