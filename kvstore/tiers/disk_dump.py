"""Looks at the index of a folder before anybody trusts it: LMDB trusts its file, and a damaged one can end
the process that reads it. Its pages are checked without LMDB (index_check.py); what is in a damaged one is
read by way of another process (index_walk.py)."""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from msgspec import Struct

from kvstore.core.errors import DiskInvalid
from kvstore.tiers import index_walk
from kvstore.tiers.disk_environment import DATA_FILE, REMEDY, check_path, disk_invalid
from kvstore.tiers.disk_folder import CLAIM_FILE, HEAD_BYTES, open_claim
from kvstore.tiers.disk_format import TABLES
from kvstore.tiers.index_check import PageFault, check_pages
from kvstore.tiers.index_walk import END, FAULT, HEAD, REFUSED

__all__ = ["Dump", "check_index", "read_dump"]

SEE = "see to its cause and try again"
DIED = "reading the index ended with"
# How a program ends by what it has read. Whoever is ended otherwise has not got to see it.
BY_DAMAGE = {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV}


class Dump(Struct, frozen=True, kw_only=True):
    """Each table's records by name, as far as they could be read; `faults` say what is missing."""

    tables: dict[str, dict[bytes, bytes]]
    faults: list[str]


def check_index(folder: Path) -> None:
    """DiskInvalid where whoever opens this index may die of it, or where it can't be read. That LMDB knows
    the file for none of its own is passed over: it is told when the folder is opened. So is that a service
    holds it, whose writes would look like damage here.

    There is no mark of an orderly stop that would spare a start this look: it takes a third of a second for a
    million blocks, and no mark knows what has become of the file since."""
    check_path(folder)
    if not os.path.exists(folder / DATA_FILE) or _is_held(folder):
        return
    if os.path.lexists(folder / CLAIM_FILE):
        # Nothing was ever kept in one that is so short: nobody opens it as it is.
        is_begun = os.path.isfile(folder / DATA_FILE) and os.path.getsize(folder / DATA_FILE) <= HEAD_BYTES
        faults = [] if is_begun else _faults_of_pages(folder)
    else:
        # Whoever's it is may use more of LMDB than we do. It is refused then, but first it must be opened.
        faults = [fault for fault in _run(folder, "walk").faults if fault.startswith(DIED)]
    if faults:
        remedy = "`kvstore verify --repair` saves what can be read; or delete the folder"
        raise disk_invalid(folder, f"damaged: {faults[0]}", remedy)


def read_dump(folder: Path) -> Dump:
    """DiskInvalid where the file can't be read, which is no damage: nothing may be dropped for that."""
    dump = _run(folder, "dump")
    # Also such as LMDB has passed over while it read.
    return dump if dump.faults else Dump(tables=dump.tables, faults=_faults_of_pages(folder))


def _faults_of_pages(folder: Path) -> list[str]:
    """The first one, or none."""
    if not (folder / DATA_FILE).is_file():
        raise disk_invalid(folder, f"{DATA_FILE} is no file", REMEDY)
    try:
        check_pages(folder / DATA_FILE)
    except PageFault as fault:
        return [f"{DATA_FILE}: {fault}"]
    except OSError as error:
        raise disk_invalid(folder, f"{DATA_FILE} can't be read: {error}", SEE) from error
    return []


def _is_held(folder: Path) -> bool:
    try:
        claim = open_claim(folder, os.O_RDONLY)
    except (OSError, DiskInvalid):
        return False
    try:
        fcntl.flock(claim, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(claim)
    return False


def _run(folder: Path, what: str) -> Dump:
    if not (folder / DATA_FILE).is_file():
        raise disk_invalid(folder, f"{DATA_FILE} is no file", REMEDY)
    tables: dict[str, dict[bytes, bytes]] = {name: {} for name in TABLES}
    faults: list[str] = []
    refused = ""
    command = [sys.executable, index_walk.__file__, str(folder), what, *TABLES]
    # Modules are found there as here, but for the folder of the program itself.
    paths = os.pathsep.join(path or os.curdir for path in sys.path)
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": paths, "PYTHONSAFEPATH": "1"},
    ) as process:
        if process.stdout is None:
            raise RuntimeError("a pipe was asked for")
        ended = False
        for table, name, record in _read(process.stdout):
            if table == END:
                ended = True
            elif table == REFUSED:
                refused = record.decode()
            elif table == FAULT:
                faults.append(f"{name.decode()}: {record.decode()}")
            elif table < len(TABLES):
                tables[TABLES[table]][name] = record
        code = process.wait()
    if not ended:
        death = f"{DIED} " + (f"signal {-code}" if code < 0 else f"status {code}")
        if -code in BY_DAMAGE:
            faults.append(death)
        else:
            refused = death
    if refused:
        raise disk_invalid(folder, f"{DATA_FILE} can't be read: {refused}", SEE)
    return Dump(tables=tables, faults=faults)


def _read(pipe: IO[bytes]) -> Iterator[tuple[int, bytes, bytes]]:
    while len(head := pipe.read(HEAD.size)) == HEAD.size:
        table, name_bytes, record_bytes = HEAD.unpack(head)
        body = pipe.read(name_bytes + record_bytes)
        if len(body) < name_bytes + record_bytes:
            return
        yield table, body[:name_bytes], body[name_bytes:]
