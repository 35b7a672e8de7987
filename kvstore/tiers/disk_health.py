"""Whether the disk may be written to: after a failure only now and then, until a write succeeds."""

from collections.abc import Callable

__all__ = ["WriteHealth"]

DELAY_SECONDS_MIN = 1.0
DELAY_SECONDS_MAX = 60.0


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
        if self.degraded:
            self._delay_seconds = min(2 * self._delay_seconds, DELAY_SECONDS_MAX)
        self.reason = reason
        self._retry_time = self._clock() + self._delay_seconds

    def retry_now(self) -> None:
        """Something has changed for the better; the next write shows whether it was enough."""
        self._retry_time = self._clock()

    def succeeded(self) -> None:
        self.reason = ""
        self._delay_seconds = DELAY_SECONDS_MIN
