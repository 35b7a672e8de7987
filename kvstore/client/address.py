"""Where a service listens when nobody says otherwise. The server takes its default from here as well."""

import os
import tempfile
from pathlib import Path

from kvstore.client.errors import ClientError

__all__ = ["default_address", "to_address"]


def default_address() -> str:
    """A socket in a folder of its own, which belongs to this user alone; the service makes that folder."""
    return f"unix:{_runtime_folder() / 'kvstore.sock'}"


def to_address(text: str) -> str:
    """`unix:PATH` from that or from a path alone. Hosts have none: nothing here goes over a network."""
    path = text.removeprefix("unix:")
    if not path or (path == text and ":" in text.split("/")[0]):
        raise ClientError(f"{text!r} is no Unix socket: give a path, or unix:PATH")
    return f"unix:{path}"


def _runtime_folder() -> Path:
    named = os.environ.get("XDG_RUNTIME_DIR", "")
    usual = Path(f"/run/user/{os.getuid()}")
    # A relative path is to be ignored, says the XDG specification; an empty one is none.
    if os.path.isabs(named):
        return Path(named, "kvstore")
    if usual.is_dir():
        return usual / "kvstore"
    return Path(tempfile.gettempdir(), f"kvstore-{os.getuid()}")
