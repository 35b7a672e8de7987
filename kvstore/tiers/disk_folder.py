"""The disk tier's folder: whose it is, who holds it, what it lies on, and what of it may be deleted.

One service at a time: LMDB itself would let several processes in, and with a fixed map and a cap
that one of them keeps account of, they would damage each other.
"""

import contextlib
import errno
import fcntl
import logging
import mmap
import os
import shutil
import stat
from pathlib import Path

from msgspec import Struct

from kvstore.tiers.disk_environment import (
    DATA_FILE,
    LOCK_FILE,
    WIPE,
    check_path,
    disk_invalid,
    is_other_format,
    probe,
)
from kvstore.tiers.disk_format import segment_name
from kvstore.tiers.files import sync_folder
from kvstore.tiers.segments import segments_in

__all__ = ["CLAIM_FILE", "FolderSize", "claim_folder", "open_claim", "size_of", "warn_of_space"]

log = logging.getLogger(__name__)

CLAIM_FILE = "kvstore.lock"
# What may lie in a folder without our data: what a start that failed half-way leaves, and a new file system.
OWN_FILES = {CLAIM_FILE, LOCK_FILE, "lost+found"}
REMOTE = {"9p", "afs", "ceph", "cifs", "glusterfs", "lustre", "nfs", "nfs4", "smb3", "smbfs", "virtiofs"}
# LMDB's first pages, which it does not sync before the first transaction.
HEAD_BYTES = 2 * mmap.PAGESIZE
MOUNTS = Path("/proc/self/mountinfo")


def claim_folder(folder: Path, *, wipe_incompatible: bool = False) -> int:
    """Makes the folder if need be and locks it; returns the descriptor that holds the lock.

    `wipe_incompatible`: what another format of ours has left there is deleted.

    The lock belongs to the descriptor, so it also keeps a second tier of this process out, and it
    ends with the process however that ends. In a folder of another program nothing is made or changed.
    """
    check_path(folder)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_owner(folder, set(os.listdir(folder)))
        claim = open_claim(folder, os.O_RDWR | os.O_CREAT)
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
    try:
        _check_content(folder, wipe_incompatible)
        _keep_claim(folder)
        _close_to_others(folder)
        _warn_if_remote(folder)
    except OSError as error:
        os.close(claim)
        raise disk_invalid(
            folder, f"can't be written to: {error}", "see to its cause or name another folder"
        ) from error
    except BaseException:
        os.close(claim)
        raise
    return claim


def open_claim(folder: Path, flags: int) -> int:
    """The file by whose lock a folder is held. A link in its place is refused (DiskInvalid): what it leads to
    is somebody else's, and is not to be written over."""
    try:
        return os.open(folder / CLAIM_FILE, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        found = f"{CLAIM_FILE} is a symbolic link, and none is followed"
        raise disk_invalid(folder, found, "delete the link, or name another folder") from error


class FolderSize(Struct, frozen=True, kw_only=True):
    """What a folder takes, as its file system counts it; and what it can take at most, with all that is free
    there now."""

    held_bytes: int
    obtainable_bytes: int


def size_of(folder: Path) -> FolderSize:
    held = sum(path.lstat().st_blocks * 512 for path in (folder, *folder.iterdir()))
    return FolderSize(held_bytes=held, obtainable_bytes=held + shutil.disk_usage(folder).free)


def warn_of_space(folder: Path, cap_bytes: int) -> None:
    obtainable = size_of(folder).obtainable_bytes
    if obtainable < cap_bytes:
        log.warning(
            "%s: the disk has room for %d bytes, less than the cap of %d", folder, obtainable, cap_bytes
        )


def _check_owner(folder: Path, names: set[str]) -> None:
    """Before anything is made there."""
    segments = {segment_name(segment) for segment in segments_in(folder)} if CLAIM_FILE in names else set()
    if DATA_FILE not in names and not names - segments <= OWN_FILES:
        strange = ", ".join(sorted(names - OWN_FILES)[:3])
        raise disk_invalid(folder, f"not empty and not kvstore's: {strange}", "name an empty or a new folder")
    if DATA_FILE in names and CLAIM_FILE not in names:
        probe(folder)


def _check_content(folder: Path, wipe_incompatible: bool) -> None:
    """Refuses, or deletes, what is of no use to this format: segments without an index, another format."""
    segments = segments_in(folder)
    data = folder / DATA_FILE
    # So short that nothing was ever kept there: a loss of power at the very start, and pages may be torn.
    is_empty = data.exists() and data.stat().st_size <= HEAD_BYTES
    if not segments and (is_empty or not data.exists()):
        data.unlink(missing_ok=True)
        return
    if is_empty or not data.exists():
        # A start makes no segment before there is an index.
        if not wipe_incompatible:
            what = "empty" if is_empty else "missing"
            raise disk_invalid(
                folder, f"{len(segments)} segments, and their index {DATA_FILE} is {what}", WIPE
            )
    elif not wipe_incompatible or not is_other_format(folder):
        return
    log.warning("%s: what another format has left is deleted", folder)
    # The index last: while it is there, it says what the rest is.
    for name in [*map(segment_name, segments), LOCK_FILE, DATA_FILE]:
        (folder / name).unlink(missing_ok=True)


def _keep_claim(folder: Path) -> None:
    """Durably, before there is anything else: a loss of power must not leave an index that is nobody's."""
    if not (folder / DATA_FILE).exists():
        sync_folder(folder)
        # It may be new, too. Not everybody may open it.
        with contextlib.suppress(OSError):
            sync_folder(folder.parent)


def _close_to_others(folder: Path) -> None:
    """KV is as private as the prompts it was computed from."""
    files = [folder / name for name in (DATA_FILE, *map(segment_name, segments_in(folder)))]
    for path, mode in ((folder, 0o700), *((file, 0o600) for file in files if file.exists())):
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
