"""Virtual time: what is to happen, in order."""

import heapq
from collections.abc import Callable
from typing import Protocol

__all__ = ["Clock"]

Action = Callable[[], None]


class _Timed(Protocol):
    time: float


class Clock:
    """Sets the time of a world and acts when it has come. Of actions for the same moment the one that
    was put first comes first."""

    def __init__(self) -> None:
        self._actions: list[tuple[float, int, Action]] = []
        self._count = 0

    def at(self, time: float, action: Action) -> None:
        self._count += 1
        heapq.heappush(self._actions, (time, self._count, action))

    @property
    def next_time(self) -> float | None:
        """Of the next action; None: nothing is to happen."""
        return self._actions[0][0] if self._actions else None

    def run_until(self, world: _Timed, time: float) -> None:
        """Does what is due. What comes late, after a pause, is done at once."""
        while self._actions and self._actions[0][0] <= time:
            due, _, action = heapq.heappop(self._actions)
            world.time = max(world.time, due)
            action()
        world.time = max(world.time, time)
