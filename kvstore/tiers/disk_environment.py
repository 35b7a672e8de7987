"""The LMDB environment in the disk tier's folder: opened, and told from what others leave."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb

from kvstore.core.errors import DiskInvalid
from kvstore.tiers.disk_format import FORMAT, MAGIC, TABLES
from kvstore.tiers.files import sync_folder

__all__ = [
    "DATA_FILE",
    "LOCK_FILE",
    "WIPE",
    "check_path",
    "disk_invalid",
    "is_other_format",
    "open_environment",
    "probe",
]

log = logging.getLogger(__name__)

# Start-up, the threads that read, one that writes; the rest is for tools.
READERS_MAX = 16
# What LMDB gives the lock file for them; where it is longer, LMDB makes room for more readers.
LOCK_FILE_BYTES = (READERS_MAX - 1) * 64 + 192
# Room for 16,000 readers: longer than anybody has made it.
LOCK_FILE_BYTES_MAX = 1 << 20
DATA_FILE = "data.mdb"
LOCK_FILE = "lock.mdb"
REMEDY = "name another folder, or move this one away"
WIPE = "start with --wipe-incompatible to delete what is there, name another folder, or move this one away"


def disk_invalid(folder: Path, found: str, remedy: str) -> DiskInvalid:
    return DiskInvalid(found, field="--disk", value=folder, remedy=remedy)


def check_path(folder: Path) -> None:
    try:
        str(folder).encode()
    except UnicodeEncodeError as error:
        remedy = "name another folder, or rename this one"
        raise disk_invalid(folder, "the path is no UTF-8, and LMDB takes no other", remedy) from error


def open_environment(folder: Path, map_bytes: int) -> tuple[Any, dict[str, Any]]:
    """The environment and its tables, by name; made where the folder is new."""
    _allocate_lock_file(folder)
    try:
        env = lmdb.open(
            str(folder),
            map_size=map_bytes,
            max_dbs=len(TABLES),
            max_readers=READERS_MAX,
            mode=0o600,
            # The index is read whole at the start, and is small beside what it is an index of.
            readahead=True,
            # A cached read transaction outlives a fork and clears its parent's reader slot (py-lmdb#346).
            max_spare_txns=0,
        )
    except (lmdb.MemoryError, OverflowError) as error:
        raise DiskInvalid(
            f"so much of {folder} can't be mapped into memory: {error}",
            field="--disk-bytes",
            value=map_bytes,
            remedy="give less; if it was possible before, the folder is damaged: delete it",
        ) from error
    except (lmdb.Error, OSError) as error:
        remedy = "see to its cause or name another folder"
        raise disk_invalid(folder, f"can't be opened: {error}", remedy) from error
    try:
        _restore_length(folder, env)
        tables = _open_tables(folder, env)
        env.reader_check()
        if env.info()["max_readers"] != READERS_MAX:
            log.warning("%s: room for %d readers, not %d", folder, env.info()["max_readers"], READERS_MAX)
    except lmdb.Error as error:
        env.close()
        remedy = "see to its cause or move the folder away"
        raise disk_invalid(folder, f"damaged or not writable: {error}", remedy) from error
    except BaseException:
        env.close()
        raise
    return env, tables


def _allocate_lock_file(folder: Path) -> None:
    """LMDB makes its lock file sparse and writes it through a map: on a full disk that is SIGBUS."""
    path = folder / LOCK_FILE
    length = LOCK_FILE_BYTES
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            length = max(length, os.fstat(lock).st_size)
            if length > LOCK_FILE_BYTES_MAX:
                # As a file with holes it may be longer than the disk, which this would fill.
                remedy = f"delete {path}: nothing in it outlives who has it open"
                raise disk_invalid(folder, f"{LOCK_FILE} is {length} bytes long", remedy)
            os.posix_fallocate(lock, 0, length)
        finally:
            os.close(lock)
    except OSError as error:
        found = f"{length} bytes for {path} can't be had: {error.strerror}"
        raise disk_invalid(folder, found, "make room there or name another folder") from error


def probe(folder: Path) -> None:
    """Refuses data that isn't ours. Without our claim beside it that is likely, so it's only read."""
    with _opened_to_read(folder) as env:
        _check_format(folder, env)


def is_other_format(folder: Path) -> bool:
    """Whether this is ours and of another format. Only read; what can't be is refused."""
    with _opened_to_read(folder) as env:
        return env.stat()["entries"] != 0 and _read_format(folder, env) != FORMAT


@contextmanager
def _opened_to_read(folder: Path) -> Iterator[Any]:
    try:
        env = lmdb.open(str(folder), readonly=True, lock=False, create=False, max_dbs=len(TABLES))
    except (lmdb.Error, OSError) as error:
        raise disk_invalid(folder, f"not kvstore's: {error}", REMEDY) from error
    try:
        # To read behind the end of a file kills the process, and to mend it (`_restore_length`) is to write.
        if (folder / DATA_FILE).stat().st_size < _length_recorded(env):
            raise disk_invalid(folder, f"{DATA_FILE} is cut off", REMEDY)
        yield env
    except lmdb.Error as error:
        raise disk_invalid(folder, f"damaged: {error}", REMEDY) from error
    finally:
        env.close()


def _open_tables(folder: Path, env: Any) -> dict[str, Any]:
    """In one transaction with the magic: a folder that is half made by a start that died can't be."""
    new = _check_format(folder, env)
    with env.begin(write=True) as txn:
        tables = {name: env.open_db(name.encode(), txn=txn) for name in TABLES}
        if new:
            txn.put(b"magic", MAGIC, db=tables["meta"])
            txn.put(b"format", FORMAT.to_bytes(4), db=tables["meta"])
    if new:
        # Before there are segments, which mean nothing without it.
        sync_folder(folder)
    return tables


def _check_format(folder: Path, env: Any) -> bool:
    """True where nothing is there yet. Refuses what another program or another version has made."""
    if env.stat()["entries"] == 0:
        return True
    format_ = _read_format(folder, env)
    if format_ != FORMAT:
        found = f"format {format_}, where this build reads and writes format {FORMAT}"
        raise disk_invalid(folder, found, WIPE)
    return False


def _read_format(folder: Path, env: Any) -> int:
    try:
        meta = env.open_db(b"meta", create=False)
        with env.begin() as txn:
            magic, format_ = txn.get(b"magic", db=meta), txn.get(b"format", db=meta)
    except (lmdb.NotFoundError, lmdb.IncompatibleError) as error:
        raise disk_invalid(folder, "an LMDB environment of another program", REMEDY) from error
    if magic != MAGIC or format_ is None:
        raise disk_invalid(folder, f"an LMDB environment of another program: magic {magic!r}", REMEDY)
    return int.from_bytes(format_)


def _restore_length(folder: Path, env: Any) -> None:
    """Makes the file as long as its own records say.

    Mapped pages behind the end of a file that was cut off would kill the process with SIGBUS when
    they are touched. As zeros they are errors that LMDB reports, or blocks whose checksum is wrong.
    Rightly missing are only pages that were given back before they were ever written.
    """
    length = _length_recorded(env)
    data = folder / DATA_FILE
    if data.stat().st_size < length:
        log.warning(
            "%s: %d bytes long, its records say %d; made longer. No harm where pages are missing that LMDB "
            "gave back before it wrote them",
            data,
            data.stat().st_size,
            length,
        )
        os.truncate(data, length)


def _length_recorded(env: Any) -> int:
    return int((env.info()["last_pgno"] + 1) * env.stat()["psize"])
