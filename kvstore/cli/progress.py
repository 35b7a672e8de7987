"""A word now and then of what takes long, for those who have no terminal that a bar could stand on."""

import sys
import time

__all__ = ["ProgressLines"]

SECONDS_BETWEEN = 10.0


class ProgressLines:
    """Lines on stderr, so that a log shows that it goes on, and is not filled by it."""

    def __init__(self, seconds_between: float = SECONDS_BETWEEN) -> None:
        self._seconds_between = seconds_between
        self._next = time.monotonic() + seconds_between

    def say(self, text: str) -> None:
        if time.monotonic() >= self._next:
            print(text, file=sys.stderr, flush=True)
            self._next = time.monotonic() + self._seconds_between
