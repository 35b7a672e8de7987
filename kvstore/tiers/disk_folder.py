"""The disk tier's folder: whose it is, who holds it, what it lies on, and the LMDB environment in it.

One service at a time: LMDB itself would let several processes in, and with a fixed map and a cap
that one of them keeps account of, they would damage each other.
"""

import fcntl
import logging
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import lmdb

from kvstore.core.errors import DiskInvalid
from kvstore.tiers.disk_format import FORMAT, MAGIC, TABLES

__all__ = ["claim_folder", "disk_invalid", "open_environment", "warn_of_space"]

log = logging.getLogger(__name__)

DATA_FILE = "data.mdb"
CLAIM_FILE = "kvstore.lock"
LOCK_FILE = "lock.mdb"
# What may lie in a folder without our data: what a start that failed half-way leaves, and a new file system.
OWN_FILES = {CLAIM_FILE, LOCK_FILE, "lost+found"}
REMOTE = {"9p", "afs", "ceph", "cifs", "glusterfs", "lustre", "nfs", "nfs4", "smb3", "smbfs", "virtiofs"}
# Start-up, one thread that writes, one that reads; the rest is for tools.
READERS_MAX = 16
# What LMDB gives the lock file for them; where it is longer, LMDB makes room for more readers.
LOCK_FILE_BYTES = (READERS_MAX - 1) * 64 + 192
MOUNTS = Path("/proc/self/mountinfo")


def disk_invalid(folder: Path, found: str, remedy: str) -> DiskInvalid:
    return DiskInvalid(found, field="--disk", value=folder, remedy=remedy)


def claim_folder(folder: Path) -> int:
    """Makes the folder if need be and locks it; returns the descriptor that holds the lock.

    The lock belongs to the descriptor, so it also keeps a second tier of this process out, and it
    ends with the process however that ends. In a folder of another program nothing is made or changed.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        names = set(os.listdir(folder))
        if DATA_FILE not in names and not names <= OWN_FILES:
            strange = ", ".join(sorted(names - OWN_FILES)[:3])
            raise disk_invalid(
                folder, f"not empty and not kvstore's: {strange}", "name an empty or a new folder"
            )
        if DATA_FILE in names and CLAIM_FILE not in names:
            _probe(folder)
        claim = os.open(folder / CLAIM_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise disk_invalid(folder, "a file, not a folder", "name an empty or a new folder") from error
    except OSError as error:
        found = error.strerror or str(error)
        raise disk_invalid(folder, found, "name a folder that the service may write to") from error
    try:
        fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(claim, 0)
        os.pwrite(claim, f"{os.getpid()} on {os.uname().nodename}".encode(), 0)
    except BlockingIOError as error:
        holder = os.pread(claim, 100, 0).decode(errors="replace") or "unknown"
        os.close(claim)
        remedy = "stop that service or name another folder"
        raise disk_invalid(folder, f"in use by another kvstore, pid {holder}", remedy) from error
    except OSError as error:
        os.close(claim)
        remedy = "make room there, or name a folder on a local disk"
        raise disk_invalid(folder, f"can't be locked: {error}", remedy) from error
    _warn_if_remote(folder)
    return claim


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
            # A block is hundreds of pages in a row, which must not be fetched one by one: cold reads
            # of 1.5 MB blocks ran at 1,400 MB/s with readahead and at 105 without.
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
        _close_to_others(folder)
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
            os.posix_fallocate(lock, 0, length)
        finally:
            os.close(lock)
    except OSError as error:
        found = f"{length} bytes for {path} can't be had: {error.strerror}"
        raise disk_invalid(folder, found, "make room there or name another folder") from error


def warn_of_space(folder: Path, cap_bytes: int) -> None:
    file_bytes = (folder / DATA_FILE).stat().st_size
    if file_bytes > cap_bytes:
        # LMDB gives freed pages out again, but never back to the file system.
        log.warning("%s: %d bytes on disk from a larger cap; delete it to shrink", folder, file_bytes)
    elif file_bytes + shutil.disk_usage(folder).free < cap_bytes:
        log.warning("%s: the disk has less room than the cap of %d bytes", folder, cap_bytes)


def _probe(folder: Path) -> None:
    """Refuses data that isn't ours. Without our claim beside it that is likely, so it's only read."""
    remedy = "name another folder, or move this one away"
    try:
        env = lmdb.open(str(folder), readonly=True, lock=False, create=False, max_dbs=len(TABLES))
    except (lmdb.Error, OSError) as error:
        raise disk_invalid(folder, f"not kvstore's: {error}", remedy) from error
    try:
        # To read behind the end of a file kills the process, and to mend it (`_restore_length`) is to write.
        if (folder / DATA_FILE).stat().st_size < _length_recorded(env):
            raise disk_invalid(folder, f"{DATA_FILE} is cut off", remedy)
        _check_format(folder, env)
    except lmdb.Error as error:
        raise disk_invalid(folder, f"damaged: {error}", remedy) from error
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
    return tables


def _check_format(folder: Path, env: Any) -> bool:
    """True where nothing is there yet. Refuses what another program or another version has made."""
    if env.stat()["entries"] == 0:
        return True
    remedy = "name another folder, or move this one away"
    try:
        meta = env.open_db(b"meta", create=False)
        with env.begin() as txn:
            magic, format_ = txn.get(b"magic", db=meta), txn.get(b"format", db=meta)
    except (lmdb.NotFoundError, lmdb.IncompatibleError) as error:
        raise disk_invalid(folder, "an LMDB environment of another program", remedy) from error
    if magic != MAGIC or format_ is None:
        raise disk_invalid(folder, f"an LMDB environment of another program: magic {magic!r}", remedy)
    if format_ != FORMAT.to_bytes(4):
        found = f"format {int.from_bytes(format_)}, where this build reads and writes format {FORMAT}"
        raise disk_invalid(folder, found, remedy)
    return False


def _restore_length(folder: Path, env: Any) -> None:
    """Makes the file as long as its own records say.

    Mapped pages behind the end of a file that was cut off would kill the process with SIGBUS when
    they are touched. As zeros they are errors that LMDB reports, or blocks whose checksum is wrong.
    Rightly missing are only pages that were given back before they were ever written.
    """
    length = _length_recorded(env)
    data = folder / DATA_FILE
    if data.stat().st_size < length:
        log.warning("%s: %d bytes long, where %d are expected", data, data.stat().st_size, length)
        os.truncate(data, length)


def _length_recorded(env: Any) -> int:
    return int((env.info()["last_pgno"] + 1) * env.stat()["psize"])


def _close_to_others(folder: Path) -> None:
    """KV is as private as the prompts it was computed from."""
    for path, mode in ((folder, 0o700), (folder / DATA_FILE, 0o600)):
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            try:
                path.chmod(mode)
            except PermissionError:
                log.warning("%s can be read by others, and its mode can't be changed", path)


def _warn_if_remote(folder: Path) -> None:
    device = folder.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = [line.split() for line in MOUNTS.read_text().splitlines()]
    except OSError:
        return
    for words in lines:
        kind = words[words.index("-") + 1]
        if words[2] == number and (kind in REMOTE or kind.startswith("fuse")):
            log.warning(
                "%s lies on %s: locks and maps don't hold there; use a local file system", folder, kind
            )
            return
