"""Which passes of an engine are over, where a device works on after the call that gave it the work.

A pass is all that was given to the device in one iteration of the engine: copies on write, and a forward
pass. What of it is over is known by an event behind it that was asked and said so. Passes end in order: one
whose event is done counts only when all before it are done too. Tests: tests/engine/test_passes.py,
test_late_device.py.
"""

from collections import deque
from dataclasses import dataclass
from typing import Protocol

__all__ = ["AHEAD_MAX", "Event", "PassesUnderWay"]

# So many may be under way; whoever is to begin one more waits for the oldest.
AHEAD_MAX = 4


class Event(Protocol):
    """A place in a stream of work."""

    def is_done(self) -> bool:
        """Whether all that was given before it is over. Asks the device, and doesn't wait."""

    def wait(self) -> None:
        """Until that is so."""

    def seconds_since(self, earlier: "Event") -> float:
        """From there to here on the device's own clock; of events that are done."""


@dataclass(frozen=True, slots=True)
class _UnderWay:
    number: int
    end: Event
    # Before its forward; None: it had none.
    begin: Event | None


class PassesUnderWay:
    def __init__(self) -> None:
        self._completed = 0
        self._under_way: deque[_UnderWay] = deque()
        # Of those that are over and had a forward: what it took.
        self._seconds: dict[int, float] = {}

    @property
    def is_empty(self) -> bool:
        return not self._under_way

    def end(self, number: int, end: Event, begin: Event | None) -> None:
        """All work of this pass has been given to the device, the last of it before `end`."""
        self._under_way.append(_UnderWay(number, end, begin))
        if len(self._under_way) > AHEAD_MAX:
            self._under_way[0].end.wait()
            self.completed()

    def completed(self) -> int:
        """The last pass whose work is over, with all before it; 0: none."""
        while self._under_way and self._under_way[0].end.is_done():
            done = self._under_way.popleft()
            self._completed = done.number
            if done.begin is not None:
                self._seconds[done.number] = done.end.seconds_since(done.begin)
        return self._completed

    def take_seconds(self) -> dict[int, float]:
        """What forwards took, of passes that `completed` has told of, each once."""
        taken, self._seconds = self._seconds, {}
        return taken
