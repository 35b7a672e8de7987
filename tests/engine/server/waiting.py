"""Waits for what another thread or process does, without a bound that a slow machine could miss."""

import time
from collections.abc import Callable

import pytest

__all__ = ["until"]

PATIENCE_SECONDS = 60.0


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        if time.monotonic() > deadline:
            pytest.fail("it never came to be")
        time.sleep(0.01)
