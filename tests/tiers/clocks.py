"""Virtual time: it goes on only where somebody waits, so a minute of pacing costs no time, without noise."""

import threading
from collections.abc import Callable


class VirtualClock:
    """For one thread. Waiting moves time on, past what is to happen meanwhile."""

    def __init__(self) -> None:
        self.time = 0.0
        self._due: list[tuple[float, Callable[[], None]]] = []

    def now(self) -> float:
        return self.time

    def wait(self, changed: threading.Condition, seconds: float | None) -> None:
        assert seconds is not None, "nobody would ever come to notify"
        self.pass_by(seconds)

    def pass_by(self, seconds: float) -> None:
        end = self.time + seconds
        while self._due and self._due[0][0] <= end:
            self.time, act = self._due.pop(0)
            act()
            # A wait is over when it is notified: here, at anything that happens.
            return
        self.time = end

    def at(self, time: float, act: Callable[[], None]) -> None:
        self._due.append((time, act))
        self._due.sort(key=lambda each: each[0])


class Clock:
    """Stands still until it is set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now
