"""Which steps of an engine are over, where a device works on after the call that gave it the work.

A step's work is all that was given to the device after its answer and before the next step: copies on write,
and a forward pass. What of it is over is known by an event behind it that was asked and said so. Steps end
in order: one whose event is done counts only when all before it are done too. Tests:
tests/engine/test_steps.py, test_late_device.py.
"""

from collections import deque
from dataclasses import dataclass
from typing import Protocol

__all__ = ["AHEAD_MAX", "Event", "StepsUnderWay"]

# So many steps may be under way; whoever is to begin one more waits for the oldest.
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
    step: int
    end: Event
    # Before its forward pass; None: it had none.
    begin: Event | None


class StepsUnderWay:
    def __init__(self) -> None:
        self._completed = 0
        self._under_way: deque[_UnderWay] = deque()
        # Of steps that are over and had a forward pass: what it took.
        self._seconds: dict[int, float] = {}

    @property
    def is_empty(self) -> bool:
        return not self._under_way

    def end(self, step: int, end: Event, begin: Event | None) -> None:
        """All of this step's work has been given to the device, the last of it before `end`."""
        self._under_way.append(_UnderWay(step, end, begin))
        if len(self._under_way) > AHEAD_MAX:
            self._under_way[0].end.wait()
            self.completed()

    def completed(self) -> int:
        """The last step whose work is over, with all before it; 0: none."""
        while self._under_way and self._under_way[0].end.is_done():
            step = self._under_way.popleft()
            self._completed = step.step
            if step.begin is not None:
                self._seconds[step.step] = step.end.seconds_since(step.begin)
        return self._completed

    def take_seconds(self) -> dict[int, float]:
        """What forward passes took, of steps that `completed` has told of, each once."""
        taken, self._seconds = self._seconds, {}
        return taken
