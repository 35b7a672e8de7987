"""How fast a link may be: a token bucket in bytes, whose rate may change while others wait for it.

Credit grows with time, up to what `BURST_SECONDS` bring. Whoever has something to move goes as soon as the
credit is not negative, and then owes its bytes. So in any second a link moves what its rate gives, what had
been saved, and one piece. Saved is no more than leaves room for the piece in `SLACK_SECONDS`: so all three
are less than 5 % above the rate, as long as a piece alone is.
"""

import threading
import time
from collections.abc import Callable
from typing import Protocol

from kvstore.core.errors import check

__all__ = ["BURST_SECONDS", "Clock", "Pace", "RealClock", "TokenBucket"]

# What may be saved up: enough to make up for a thread that is woken late.
BURST_SECONDS = 0.03
SLACK_SECONDS = 0.045
QUANTUM_SECONDS = 0.01
# Below this the calls would cost more than the copies. It is over 1 % of the slowest rates, up to 6 MiB/s.
QUANTUM_BYTES_MIN = 64 << 10

# Called with the bytes of each piece just before it moves; returns when it may.
Pace = Callable[[int], None]


class Clock(Protocol):
    """Time as the movers see it. Tests have one that goes on only where somebody waits."""

    def now(self) -> float:
        """Monotonic seconds."""

    def wait(self, changed: threading.Condition, seconds: float | None) -> None:
        """With the condition held: until it is notified, or so long. None: without end."""


class RealClock:
    def now(self) -> float:
        return time.monotonic()

    def wait(self, changed: threading.Condition, seconds: float | None) -> None:
        changed.wait(seconds)


class TokenBucket:
    """A rate of 0: no limit. For any number of threads."""

    def __init__(self, clock: Clock, bytes_per_second: float = 0.0) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._rate = 0.0
        self._credit = 0.0
        self._counted_at = clock.now()
        self._closed = False
        # In all, by all who waited.
        self.waited_seconds = 0.0
        self.set_rate(bytes_per_second)

    @property
    def bytes_per_second(self) -> float:
        return self._rate

    @property
    def quantum_bytes(self) -> int:
        """The most to move at once where it can be cut; 0: no limit, so no need to cut."""
        rate = 0.0 if self._closed else self._rate
        return max(QUANTUM_BYTES_MIN, int(rate * QUANTUM_SECONDS)) if rate else 0

    def set_rate(self, bytes_per_second: float) -> None:
        """Holds at once, for those who wait too. Nothing saved or owed under another rate is kept."""
        check(bytes_per_second >= 0, f"a rate of {bytes_per_second} bytes a second")
        with self._changed:
            if bytes_per_second != self._rate:
                self._rate = bytes_per_second
                self._credit = 0.0
                self._counted_at = self._clock.now()
                self._changed.notify_all()

    def close(self) -> None:
        """Lets all go that wait or come: the service stops, and what is under way has to end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def pace(self, size: int) -> None:
        """Waits until so many bytes may move, and counts them as moved."""
        if not self._rate:  # Without the lock: a limit that is just being set holds from the next piece on.
            return
        with self._changed:
            began = None
            while self._rate and not self._closed:
                now = self._clock.now()
                self._count(now, size)
                # A whole byte's time is the least to wait for: less might not move the clock on.
                if self._credit > -1:
                    self._credit -= size
                    break
                began = now if began is None else began
                self._clock.wait(self._changed, -self._credit / self._rate)
            if began is not None:
                self.waited_seconds += self._clock.now() - began

    def _count(self, now: float, size: int) -> None:
        saved = min(BURST_SECONDS, SLACK_SECONDS - size / self._rate)
        self._credit += (now - self._counted_at) * self._rate
        self._credit = min(self._credit, max(0.0, saved) * self._rate)
        self._counted_at = now
