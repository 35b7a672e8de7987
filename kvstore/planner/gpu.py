"""The GPU in virtual time: it prefills one sequence after the other, and decodes all at one speed."""

from collections import deque
from collections.abc import Callable
from functools import partial

from kvstore.core.bounds import LEAST_SECONDS, STEP_SECONDS_MAX, TIMINGS_MAX
from kvstore.core.types import StepNumber, StepTiming
from kvstore.planner.machine import Machine
from kvstore.planner.served import Served

__all__ = ["Gpu"]


class Gpu:
    """`computed` is told each prefill that has ended, `full` who has no room for its next token, and `whole`
    whose answer is there."""

    def __init__(
        self,
        machine: Machine,
        *,
        computed: Callable[[Served], None],
        full: Callable[[Served], None],
        whole: Callable[[Served], None],
    ) -> None:
        self._machine = machine
        self._computed, self._full, self._whole = computed, full, whole
        self._ready: deque[Served] = deque()
        self._computes = False
        # Of prefills that have ended and were not told to the store yet: from where to where, and seconds.
        self._timings: list[tuple[int, int, float]] = []
        self.prefill_seconds = 0.0
        # What was found has saved, and what was computed again after preemptions.
        self.prefill_seconds_saved = 0.0
        self.prefill_seconds_again = 0.0

    @property
    def prefills(self) -> int:
        """How many are computed or ready for it."""
        return len(self._ready) + self._computes

    def be_ready(self, served: Served) -> None:
        """Its blocks are on the GPU: it is prefilled from `filled` to `target` when its turn comes."""
        self._ready.append(served)

    def act(self) -> None:
        if self._ready and not self._computes:
            self._prefill(self._ready.popleft())

    def take_timings(self, step: StepNumber) -> tuple[StepTiming, ...]:
        """Of prefills that have ended since, as an engine tells them; as parts of this step's work.

        What decodes beside is not told: here it takes nothing from prefill, so it makes none dearer.
        """
        if not self._timings:
            return ()
        timings, self._timings = self._timings, []
        return tuple(
            [
                StepTiming(
                    step=step,
                    prefill_tokens=end - begin,
                    prefill_context=(end - begin) * begin + (end - begin) ** 2 // 2,
                    elapsed_seconds=seconds,
                )
                for begin, end, seconds in timings[-TIMINGS_MAX:]
            ]
        )

    def _prefill(self, served: Served) -> None:
        profile, turn = self._machine.profile, served.turn
        begin, end = served.filled, served.target
        seconds = profile.prefill_seconds(begin, end)
        self.prefill_seconds += seconds
        if served.preemptions:
            self.prefill_seconds_again += seconds
        else:
            self.prefill_seconds_saved += profile.prefill_seconds(0, turn.input_tokens) - seconds
        self._computes = True
        self._machine.clock.at(self._machine.time + seconds, partial(self._prefilled, served, seconds))

    def _prefilled(self, served: Served, seconds: float) -> None:
        self._computes = False
        # What no step can have taken would be refused.
        if LEAST_SECONDS <= seconds <= STEP_SECONDS_MAX:
            self._timings.append((served.filled, served.target, seconds))
        served.filled = served.target
        if served.first_token < 0:
            served.first_token = self._machine.time
        self._computed(served)
        self.decode(served)

    # ----------------------------------------------------------------------------- decode

    def decode(self, served: Served) -> None:
        """From `filled` on, as far as there is room for it."""
        end = served.room
        passes = end - served.filled
        if served.filled == served.tokens_end:
            self._whole(served)
        elif not passes:
            self._full(served)
        else:
            served.decode += 1
            served.decodes_since = self._machine.time
            later = self._machine.time + passes * self._machine.profile.decode_seconds
            self._machine.clock.at(later, partial(self._decoded, served, end, served.decode))

    def stop(self, served: Served) -> None:
        """It is to leave the GPU: what it has decoded till now is written, a part of a pass is lost."""
        room = served.room - served.filled
        seconds, passed = self._machine.profile.decode_seconds, self._machine.time - served.decodes_since
        served.filled += min(room, int(passed / seconds)) if seconds else room
        served.decode += 1

    def _decoded(self, served: Served, end: int, number: int) -> None:
        if number == served.decode:
            served.filled = end
            self.decode(served)
