"""Where a service listens when nobody says otherwise. The server takes its default from here as well."""

import os
import tempfile
from pathlib import Path

__all__ = ["default_address"]


def default_address() -> str:
    """A socket in a folder of its own, which belongs to this user alone; the service makes that folder."""
    return f"unix:{_runtime_folder() / 'kvstore.sock'}"


def _runtime_folder() -> Path:
    named = os.environ.get("XDG_RUNTIME_DIR", "")
    usual = Path(f"/run/user/{os.getuid()}")
    # A relative path is to be ignored, says the XDG specification; an empty one is none.
    if os.path.isabs(named):
        return Path(named, "kvstore")
    if usual.is_dir():
        return usual / "kvstore"
    return Path(tempfile.gettempdir(), f"kvstore-{os.getuid()}")
