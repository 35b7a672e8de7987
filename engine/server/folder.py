"""A folder that a service is started in: made, if it isn't there, and looked at before that.

Tests: tests/engine/server/test_flags.py, test_own_service.py.
"""

import os
import socket
import struct
import time
from pathlib import Path

from engine.server.flags import FlagRefused, reason
from kvstore.client.address import to_address
from kvstore.client.errors import ClientError

__all__ = ["SOCKET_NAME", "find_listener", "make_folder", "make_service_folder"]

SOCKET_NAME = "kvstore.sock"
# A service whose server has just been killed is about to leave the folder.
LEAVE_SECONDS = 2.0
LOOK_SECONDS = 0.05
CONNECT_SECONDS = 1.0
# Linux's struct ucred: process, user, group.
CREDENTIALS = struct.Struct("3i")


def make_service_folder(flag: str, name: str) -> Path:
    """For the service's socket, its log and its disk tier. Raises FlagRefused, also where one runs in it."""
    try:
        to_address(f"unix:{Path(name) / SOCKET_NAME}")
    except ClientError:
        why = f"{SOCKET_NAME} in it can't be a socket's address"
        remedy = "a shorter name, in UTF-8 and without % ? # and commas"
        raise FlagRefused(flag, name, why, remedy) from None
    folder = make_folder(flag, name)
    deadline = time.monotonic() + LEAVE_SECONDS
    while process := find_listener(folder / SOCKET_NAME):
        if time.monotonic() > deadline:
            why = f"a service runs in it already, as process {process}"
            raise FlagRefused(flag, name, why, "another folder, or stop that service and its server")
        time.sleep(LOOK_SECONDS)
    return folder


def make_folder(flag: str, name: str) -> Path:
    """Raises FlagRefused."""
    if not name.strip():
        raise FlagRefused(flag, name, "it names no folder", "name one, or leave it out")
    folder = Path(name)
    remedy = "a folder that is this user's, or that can be made"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError:
        raise FlagRefused(flag, name, "it is no folder", remedy) from None
    except OSError as error:
        raise FlagRefused(flag, name, f"it can't be made: {reason(error)}", remedy) from error
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise FlagRefused(flag, name, "it may not be read, or not written to", remedy)
    return folder


def find_listener(path: Path) -> int:
    """The process that listens on that socket; 0: none that can be asked."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(CONNECT_SECONDS)
        try:
            probe.connect(os.fspath(path))
            told = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        except OSError:
            return 0
    process: int = CREDENTIALS.unpack(told)[0]
    return process
