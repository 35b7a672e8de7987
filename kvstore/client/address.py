"""Where a service listens when nobody says otherwise. The server takes its default from here as well."""

import os
import re
import tempfile
from pathlib import Path

from kvstore.client.errors import ClientError

__all__ = ["default_address", "to_address"]

# The operating system's limit, without the zero at the end.
PATH_BYTES_MAX = 107
NOT_IN_ADDRESSES = "%?#,\0"


def default_address() -> str:
    """A socket in a folder of its own, which belongs to this user alone; the service makes that folder."""
    return f"unix:{_runtime_folder() / 'kvstore.sock'}"


def to_address(text: str) -> str:
    """`unix:PATH` from that or from a path alone. Hosts have none: nothing here goes over a network."""
    path = text.removeprefix("unix://") if text.startswith("unix:///") else text.removeprefix("unix:")
    # `unix://x/y` would have a host; so would, to gRPC, a path with two slashes at its start.
    hosted = text.startswith("unix://") and not text.startswith("unix:///")
    if not path or hosted or (path == text and ":" in text.split("/")[0]):
        raise ClientError(f"{text!r} is no Unix socket: give a path, or unix:PATH")
    # To gRPC an address is a URI, and text: lone surrogates are bytes of the shell's that were none.
    if any(each in NOT_IN_ADDRESSES or "\ud800" <= each <= "\udfff" for each in path):
        raise ClientError(
            f"{text!r} cannot be a socket's address: it takes no % ? # or comma, and UTF-8 only"
        )
    if len(path.encode()) > PATH_BYTES_MAX:
        raise ClientError(f"{text!r} is too long for a socket: at most {PATH_BYTES_MAX} bytes")
    return f"unix:{re.sub('^/+', '/', path)}"


def _runtime_folder() -> Path:
    named = os.environ.get("XDG_RUNTIME_DIR", "")
    usual = Path(f"/run/user/{os.getuid()}")
    # A relative path is to be ignored, says the XDG specification; an empty one is none.
    if os.path.isabs(named):
        return Path(named, "kvstore")
    if usual.is_dir():
        return usual / "kvstore"
    return Path(tempfile.gettempdir(), f"kvstore-{os.getuid()}")
