"""The folder of `--own-service`: made, if it isn't there, and looked at before a service is started in it."""

import os
from pathlib import Path

from engine.server.flags import FlagRefused, reason
from kvstore.client.address import to_address
from kvstore.client.errors import ClientError

__all__ = ["SOCKET_NAME", "make_folder"]

SOCKET_NAME = "kvstore.sock"
FLAG = "--folder"


def make_folder(name: str) -> Path:
    """Of the service's socket, its log and its disk tier. Raises FlagRefused."""
    if not name.strip():
        raise FlagRefused(FLAG, name, "it names no folder", "name one, or leave it out for a temporary one")
    folder = Path(name)
    _check_address(name, folder / SOCKET_NAME)
    remedy = "a folder that is this user's, or that can be made"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError:
        raise FlagRefused(FLAG, name, "it is no folder", remedy) from None
    except OSError as error:
        raise FlagRefused(FLAG, name, f"it can't be made: {reason(error)}", remedy) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise FlagRefused(FLAG, name, "nothing may be written there", remedy)
    return folder


def _check_address(name: str, socket: Path) -> None:
    try:
        to_address(f"unix:{socket}")
    except ClientError:
        why = f"{SOCKET_NAME} in it can't be a socket's address"
        remedy = "a shorter name, in UTF-8 and without % ? # and commas"
        raise FlagRefused(FLAG, name, why, remedy) from None
