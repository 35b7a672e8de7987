"""Streams that run late and out of order, as they may: each in its own order, and none in that of another.

Work is cut into small steps, and a seed draws whose step is next, so a copy is half done while another stream
goes on. In a thread of its own, or, `stepped`, only when a test says so.
"""

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

__all__ = ["FakeStreams", "Stream"]

Step = Callable[[], None]
# So many steps long a stream is quick or slow, then it is drawn again.
SPELL_STEPS = 40
PAUSE_SECONDS_MAX = 0.0003


@dataclass
class Stream:
    number: int
    steps: deque[Step] = field(default_factory=deque)
    is_stalled: bool = False
    weight: int = 1


class FakeStreams:
    def __init__(self, seed: int, *, stepped: bool = False) -> None:
        self.by_number: dict[int, Stream] = {}
        self.steps_run = 0
        self.random = random.Random(seed)
        self._changed = threading.Condition()
        self._closed = False
        self._last = 0
        self._thread = (
            None if stepped else threading.Thread(target=self._run, name="fake-streams", daemon=True)
        )
        if self._thread is not None:
            self._thread.start()

    def add(self) -> int:
        with self._changed:
            self._last += 1
            self.by_number[self._last] = Stream(self._last)
            return self._last

    def remove(self, number: int) -> None:
        with self._changed:
            del self.by_number[number]

    def put(self, number: int, steps: Sequence[Step]) -> None:
        with self._changed:
            self.by_number[number].steps.extend(steps)
            self._changed.notify_all()

    def stall(self, number: int | None = None) -> None:
        """Nothing of it runs from now on; None: of any of those that there are."""
        self._set_stalled(number, True)

    def resume(self, number: int | None = None) -> None:
        self._set_stalled(number, False)

    def drop(self) -> None:
        """What was given and has not run never will."""
        with self._changed:
            for stream in self.by_number.values():
                stream.steps.clear()
            self._changed.notify_all()

    def step(self, number: int | None = None) -> bool:
        """One step of this stream, or of any. False: nothing can run."""
        with self._changed:
            return self._step(number)

    def wait_empty(self) -> None:
        """Until all that was given has run; with a thread of its own only."""
        with self._changed:
            self._changed.wait_for(lambda: not any(stream.steps for stream in self.by_number.values()))

    def run_all(self) -> None:
        while self.step():
            pass

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _set_stalled(self, number: int | None, is_stalled: bool) -> None:
        with self._changed:
            for stream in self.by_number.values():
                if number in (None, stream.number):
                    stream.is_stalled = is_stalled
            self._changed.notify_all()

    def _step(self, number: int | None) -> bool:
        ready = [
            stream
            for stream in self.by_number.values()
            if stream.steps and not stream.is_stalled and number in (None, stream.number)
        ]
        if not ready:
            return False
        if self.steps_run % SPELL_STEPS == 0:
            for stream in self.by_number.values():
                stream.weight = self.random.choice((1, 8, 64))
        self.steps_run += 1
        [chosen] = self.random.choices(ready, [stream.weight for stream in ready])
        chosen.steps.popleft()()
        if not chosen.steps:
            self._changed.notify_all()
        return True

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._closed and not self._step(None):
                    self._changed.wait()
                if self._closed:
                    return
                pause = self.random.choice((0.0, 0.0, self.random.uniform(0, PAUSE_SECONDS_MAX)))
            if pause:
                time.sleep(pause)
