"""The socket's place in the file system: its owner and mode are the identity of a trust domain.

Two sockets stand side by side: the one that speaks gRPC, and `<socket>.fds` for tethers. A socket file
that nobody listens on is what a killed service left behind, and is removed.
"""

import fcntl
import os
import re
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from kvstore.core.errors import ConfigInvalid

__all__ = ["claimed", "file_identity", "parse_address", "private_files", "remove", "tether_path"]

# sockaddr_un.sun_path holds 108 bytes, one of them the end.
PATH_BYTES_MAX = 107
TETHER_SUFFIX = ".fds"
CONNECT_SECONDS = 1.0
NOT_IN_ADDRESSES = "%?#,\0"
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:|[^/]*:[0-9]+$|@")


def parse_address(text: str) -> Path:
    """`/path`, `unix:path` or `unix:///path`."""
    name = text.removeprefix("unix://") if text.startswith("unix:///") else text.removeprefix("unix:")
    if not name:
        _refuse(text, "empty", "name a path for the socket")
    if text.startswith("unix://") and not text.startswith("unix:///"):
        _refuse(text, "a host stands where the path should begin", "use unix:/path or unix:path")
    if SCHEME.match(name):
        remedy = "use unix:/path: its folder's owner and mode say who may connect"
        _refuse(text, "only Unix sockets are served in this version", remedy)
    _check_characters(text, name)
    # Two slashes at the start, which a Path would keep, are a host's to gRPC.
    path = Path(re.sub("^/+", "/", name)).absolute()
    if path.name in ("", ".."):
        _refuse(text, "names no file", "name a file for the socket, in a folder")
    length = len(os.fsencode(tether_path(path)))
    if length > PATH_BYTES_MAX:
        remedy = f"at most {PATH_BYTES_MAX} bytes; use a shorter folder"
        _refuse(text, f"too long: {length} bytes with {TETHER_SUFFIX}", remedy)
    return path


def _check_characters(text: str, name: str) -> None:
    """To gRPC an address is a URI: it would listen elsewhere, or not at all."""
    # A relative path is put behind the working folder, which has to be good as well.
    whole = os.path.abspath(name)
    if found := [each for each in NOT_IN_ADDRESSES if each in whole]:
        _refuse(text, f"{found[0]!r} has a meaning of its own in addresses", "choose a path without")
    # Bytes that are no UTF-8 come from the shell as lone surrogates.
    if any("\ud800" <= each <= "\udfff" for each in whole):
        _refuse(text, "not UTF-8", "choose a path that is text")


def tether_path(path: Path) -> Path:
    return path.with_name(path.name + TETHER_SUFFIX)


@contextmanager
def claimed(path: Path) -> Iterator[None]:
    """Both names are free and stay so within: bind them there.

    The folder is locked meanwhile, so of two services that start at once one finds the other.
    """
    _make_folder(path.parent)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        for name in (path, tether_path(path)):
            _remove_dead(name)
        yield
    finally:
        os.close(folder)


@contextmanager
def private_files() -> Iterator[None]:
    """Sockets that are bound within have mode 0600."""
    mask = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(mask)


def file_identity(path: Path) -> tuple[int, int]:
    """Tells this file from another of the same name."""
    status = path.stat(follow_symlinks=False)
    return status.st_dev, status.st_ino


def remove(path: Path, identity: tuple[int, int]) -> None:
    """Removes a socket of ours: not one that a successor has bound meanwhile."""
    try:
        if file_identity(path) == identity:
            path.unlink()
    except FileNotFoundError:
        pass


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        _refuse(folder, f"can't make the folder: {error.strerror}", "choose a folder of your own")
    # Root's folders are fine where it lets us write, /run or /tmp for instance.
    if status.st_uid not in (os.geteuid(), 0):
        _refuse(folder, f"its folder belongs to user {status.st_uid}", "choose a folder of your own")
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        _refuse(folder, "all may write to its folder", "chmod o-w, or choose a folder of your own")
    if not os.access(folder, os.W_OK | os.X_OK):
        _refuse(folder, "its folder can't be written to", "choose a folder of your own")


def _remove_dead(path: Path) -> None:
    try:
        mode = path.stat(follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        _refuse(path, "a file that is no socket stands there", "remove it or choose another name")
    if _is_alive(path):
        _refuse(path, "a service listens there already", "stop it or choose another socket")
    path.unlink()


def _is_alive(path: Path) -> bool:
    """Also when it doesn't answer: a service that is stopped (SIGSTOP) is not gone."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(CONNECT_SECONDS)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            return False
        except PermissionError:
            _refuse(path, "somebody else's socket stands there", "choose another name")
        except OSError:
            return True
    return True


def _refuse(path: Path | str, message: str, remedy: str) -> NoReturn:
    raise ConfigInvalid(message, field="--socket", value=path, remedy=remedy)
