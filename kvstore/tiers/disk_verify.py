"""`kvstore verify`: a whole folder that no service holds is looked at, and changed only to repair it.

What is damaged is listed; what is right is left alone. Repaired means: what is damaged is gone, so that all
that is left is served, and what it took is free again. Nothing here trusts a byte of the folder: the index is
read by a process that may die of it (disk_dump.py).
"""

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct, field

from kvstore.tiers.disk_check import check_bytes, check_places, find_orphans
from kvstore.tiers.disk_dump import Dump, read_dump
from kvstore.tiers.disk_environment import (
    DATA_FILE,
    LOCK_FILE,
    REMEDY,
    WIPE,
    check_path,
    disk_invalid,
)
from kvstore.tiers.disk_folder import CLAIM_FILE, open_claim
from kvstore.tiers.disk_format import FORMAT, MAGIC, BlockEntry, Geometry, segment_name, unpack_name_row
from kvstore.tiers.disk_records import unpack_session
from kvstore.tiers.disk_repair import Remains, rebuild
from kvstore.tiers.files import DirectFiles, Files
from kvstore.tiers.names import NameKind, NameRow, Names
from kvstore.tiers.segments import segments_in

__all__ = ["Damage", "Report", "verify"]

# More are counted, and not listed one by one.
LISTED_MAX = 1000


class Damage(Struct, frozen=True, kw_only=True):
    """`kind`: index, meta, name, entry, place, bytes, orphan, session or segment. `what`: which one."""

    kind: str
    what: str
    why: str


class Report(Struct, kw_only=True):
    folder: str
    blocks_good: int = 0
    bytes_good: int = 0
    sessions_good: int = 0
    # How many of each kind; the first of them.
    damages: dict[str, int] = field(default_factory=dict)
    listed: list[Damage] = field(default_factory=list)
    # Files that are nobody's here. They are left alone.
    strange_files: list[str] = field(default_factory=list)
    repaired: bool = False

    @property
    def is_good(self) -> bool:
        return not self.damages

    def add(self, kind: str, what: str, why: str) -> None:
        self.damages[kind] = self.damages.get(kind, 0) + 1
        if len(self.listed) < LISTED_MAX:
            self.listed.append(Damage(kind=kind, what=what, why=why))


# Bytes that have been looked at, and how many there are.
Progress = Callable[[int, int], None]


def verify(folder: Path, *, repair: bool, progress: Progress, files: Files | None = None) -> Report:
    """DiskInvalid where the folder isn't ours, is of another format, is held by a service, or can't be read:
    what isn't damaged is never dropped."""
    folder = Path(os.path.realpath(folder))
    files = files or DirectFiles()
    with _held(folder, repair):
        report = Report(folder=str(folder))
        dump = _read_index(folder, report)
        remains = _remains_of(dump, report)
        segments = segments_in(folder)
        _look_at_files(folder, segments, remains.geometry, report)
        if remains.geometry is None:
            for segment in segments:
                report.add("segment", segment_name(segment), "no entry tells what is in it")
            remains.entries.clear()
        else:
            _look_at_blocks(folder, files, segments, remains, progress, report)
        report.blocks_good = len(remains.entries)
        report.bytes_good = sum(entry.size for entry in remains.entries.values())
        report.sessions_good = len(remains.sessions)
        if repair and not report.is_good:
            rebuild(folder, files, remains)
            report.repaired = True
        return report


@contextmanager
def _held(folder: Path, repair: bool) -> Iterator[None]:
    """As a service holds it, so that none starts meanwhile; nothing is made where nothing is ours."""
    check_path(folder)
    claim = -1
    try:
        if not os.path.isdir(folder):
            raise disk_invalid(folder, "not a folder", "name the folder of `kvstore serve --disk`")
        names = os.listdir(folder)
        if DATA_FILE not in names and CLAIM_FILE not in names:
            raise disk_invalid(folder, "not kvstore's", "name the folder of `kvstore serve --disk`")
        if CLAIM_FILE in names:
            access = os.O_RDWR if repair else os.O_RDONLY
            claim = open_claim(folder, access)
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        holder = os.pread(claim, 100, 0).decode(errors="replace") or "unknown"
        raise disk_invalid(folder, f"in use by a kvstore, pid {holder}", "stop that service first") from error
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        found = f"{where}{error.strerror or error}"
        raise disk_invalid(folder, found, "see to its cause, or to who may read and write there") from error
    finally:
        if claim >= 0:
            os.close(claim)


def _read_index(folder: Path, report: Report) -> Dump:
    if not (folder / DATA_FILE).exists():
        report.add("index", DATA_FILE, "missing")
        return Dump(tables={}, faults=[])
    dump = read_dump(folder)
    meta = dump.tables["meta"]
    is_ours = (folder / CLAIM_FILE).exists()
    if meta.get(b"magic") != MAGIC and not is_ours:
        raise disk_invalid(folder, f"not kvstore's: magic {meta.get(b'magic')!r}", REMEDY)
    format_ = meta.get(b"format", b"")
    if meta.get(b"magic") == MAGIC and len(format_) == 4 and format_ != FORMAT.to_bytes(4):
        found = f"format {int.from_bytes(format_)}, where this build reads and writes format {FORMAT}"
        raise disk_invalid(folder, found, WIPE)
    for fault in dump.faults:
        report.add("index", DATA_FILE, fault)
    if meta.get(b"magic") != MAGIC or format_ != FORMAT.to_bytes(4):
        report.add("meta", DATA_FILE, "the mark of kvstore or of its format is damaged")
    return dump


def _remains_of(dump: Dump, report: Report) -> Remains:
    """What can be read of the index, as far as its records go."""
    tables: Mapping[str, Mapping[bytes, bytes]] = dump.tables
    geometry: Geometry | None = None
    record = tables.get("meta", {}).get(b"geometry")
    if record is not None:
        try:
            geometry = Geometry.unpack(record)
        except ValueError as error:
            report.add("meta", "geometry", str(error))
    elif tables.get("blocks"):
        report.add("meta", "geometry", "missing")
    remains = Remains(geometry=geometry, rows=_rows_of(tables, report))
    known = {kind: {row.id for row in remains.rows if row.kind is kind} for kind in NameKind}
    for name, record in tables.get("blocks", {}).items():
        try:
            entry = BlockEntry.unpack(name, record)
        except ValueError as error:
            report.add("entry", name.hex(), str(error))
            continue
        namespace, tenant = int.from_bytes(name[:4]), int.from_bytes(name[4:8])
        if namespace in known[NameKind.NAMESPACE] and tenant in known[NameKind.TENANT]:
            remains.entries[name] = entry
        else:
            report.add(
                "name", name.hex(), f"nobody is called namespace {namespace}, tenant {tenant} any more"
            )
    for name, record in tables.get("sessions", {}).items():
        try:
            unpack_session(name, record)
        except ValueError as error:
            report.add("session", name.hex(), str(error))
        else:
            remains.sessions[name] = record
    remains.uses.update(tables.get("uses", {}))
    return remains


def _rows_of(tables: Mapping[str, Mapping[bytes, bytes]], report: Report) -> list[NameRow]:
    rows: list[NameRow] = []
    for kind in NameKind:
        ids: set[int] = set()
        for name, record in tables.get(kind, {}).items():
            try:
                row = unpack_name_row(kind, name, record)
                # Whether it is one that a service would take.
                Names([row])
                if row.id in ids:
                    raise ValueError(f"a second one with id {row.id}")
            except ValueError as error:
                report.add("name", f"{kind} {name[:32].hex()}", str(error))
            else:
                ids.add(row.id)
                rows.append(row)
    return rows


def _look_at_blocks(
    folder: Path, files: Files, segments: list[int], remains: Remains, progress: Progress, report: Report
) -> None:
    geometry = remains.geometry
    if geometry is None:
        return
    for name, why in check_places(remains.entries, geometry, segments).items():
        report.add("place", name.hex(), why)
        del remains.entries[name]
    for name, why in check_bytes(folder, files, remains.entries, geometry, progress):
        report.add("bytes", name.hex(), why)
        del remains.entries[name]
    for name in find_orphans(remains.entries):
        report.add("orphan", name.hex(), "a block that it hangs on is missing")
        del remains.entries[name]


def _look_at_files(folder: Path, segments: list[int], geometry: Geometry | None, report: Report) -> None:
    own = {DATA_FILE, LOCK_FILE, CLAIM_FILE, "lost+found", *map(segment_name, segments)}
    strange = sorted(set(os.listdir(folder)) - own)
    report.strange_files = [os.fsencode(name).decode(errors="backslashreplace") for name in strange]
    if geometry is None:
        return
    whole = geometry.segment_slots * geometry.slot_bytes
    for segment in segments:
        size = (folder / segment_name(segment)).stat().st_size
        if size > whole or size % geometry.slot_bytes:
            report.add(
                "segment", segment_name(segment), f"{size} bytes long; slots are {geometry.slot_bytes}"
            )
