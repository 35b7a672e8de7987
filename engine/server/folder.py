"""A folder that a service is started in: made, if it isn't there, and looked at before that."""

import os
from pathlib import Path

from engine.server.flags import FlagRefused, reason
from kvstore.client.address import to_address
from kvstore.client.errors import ClientError

__all__ = ["SOCKET_NAME", "make_folder", "make_service_folder"]

SOCKET_NAME = "kvstore.sock"


def make_service_folder(flag: str, name: str) -> Path:
    """For the service's socket, its log and its disk tier. Raises FlagRefused."""
    try:
        to_address(f"unix:{Path(name) / SOCKET_NAME}")
    except ClientError:
        why = f"{SOCKET_NAME} in it can't be a socket's address"
        remedy = "a shorter name, in UTF-8 and without % ? # and commas"
        raise FlagRefused(flag, name, why, remedy) from None
    return make_folder(flag, name)


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
