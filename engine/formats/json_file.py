"""A JSON file that must hold an object."""

import json
from pathlib import Path
from typing import Any

from engine.refused import ModelRefused

__all__ = ["read_json"]


def read_json(path: Path) -> dict[str, Any]:
    """Refuses what is no object."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelRefused(path, "its text", f"it is no JSON ({error})", "fetch it again") from error
    if not isinstance(values, dict):
        raise ModelRefused(path, "its text", "it is no JSON object", "fetch it again")
    return values
