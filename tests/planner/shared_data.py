"""Where the traces are that tests are run on if they are there; the project does without them."""

from pathlib import Path

import pytest

__all__ = ["find_trace"]


def find_trace(name: str) -> Path:
    """A trace of the shared data beside the checkout, or beside a folder that it is in. Skips without it."""
    for folder in Path(__file__).resolve().parents:
        path = folder / "shared" / "data" / "traces" / name
        if path.exists():
            return path
    pytest.skip(f"shared/data/traces/{name} is not beside this checkout")
