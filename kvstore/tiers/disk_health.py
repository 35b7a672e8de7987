"""Whether the disk may be written to: after a failure only now and then, until a write succeeds.

And what has gone wrong, in numbers.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["DiskCounts", "WriteHealth"]

DELAY_SECONDS_MIN = 1.0
DELAY_SECONDS_MAX = 60.0


@dataclass(slots=True, kw_only=True)
class DiskCounts:
    """Since the start, for metrics."""

    bad_entries: int = 0
    orphans: int = 0
    read_errors: int = 0
    # Of these, reads that had not returned at their deadline.
    late_reads: int = 0
    write_errors: int = 0
    delete_errors: int = 0


class WriteHealth:
    """`clock` tells monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._delay_seconds = DELAY_SECONDS_MIN
        self._retry_time = 0.0
        self.reason = ""

    @property
    def degraded(self) -> bool:
        return self.reason != ""

    @property
    def must_wait(self) -> bool:
        return self.degraded and self._clock() < self._retry_time

    def failed(self, reason: str) -> None:
        if self._retry_time == math.inf:
            return
        if self.degraded:
            self._delay_seconds = min(2 * self._delay_seconds, DELAY_SECONDS_MAX)
        self.reason = reason
        self._retry_time = self._clock() + self._delay_seconds

    def failed_for_good(self, reason: str) -> None:
        """Nothing is tried again before the service starts anew."""
        self.reason = reason
        self._retry_time = math.inf

    def retry_now(self) -> None:
        """Something has changed for the better; the next write shows whether it was enough."""
        if self._retry_time < math.inf:
            self._retry_time = self._clock()

    def succeeded(self) -> None:
        self.reason = ""
        self._delay_seconds = DELAY_SECONDS_MIN
