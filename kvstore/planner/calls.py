"""The calls of an engine in virtual time: steps by number, and what keeps its lease when there are none."""

from collections.abc import Sequence

from kvstore.core.answers import KeepAliveAnswer, StepAnswer
from kvstore.core.calls import KeepAlive, Step
from kvstore.core.errors import CheckFailed
from kvstore.core.operations import Operation
from kvstore.core.types import Revision, StepNumber
from kvstore.planner.gpu import Gpu
from kvstore.planner.machine import ENGINE, Machine

__all__ = ["Calls"]

# Renewed by each step; asked for by itself where there were none for so long.
QUIET_SECONDS = 3.0


class Calls:
    def __init__(self, machine: Machine, gpu: Gpu) -> None:
        self._machine = machine
        self._gpu = gpu
        self._step = 0
        self._seen = Revision(0)
        self._last_time = 0.0

    @property
    def is_quiet(self) -> bool:
        return self._machine.time - self._last_time >= QUIET_SECONDS

    def step(self, operations: Sequence[Operation]) -> StepAnswer:
        """Time stands still while something is told, so all work before it is done."""
        self._step += 1
        completed = StepNumber(self._step - 1)
        event = Step(
            time=self._machine.time,
            engine=ENGINE,
            step=StepNumber(self._step),
            completed_step=completed,
            operations=tuple(operations),
            timings=self._gpu.take_timings(completed),
        )
        answer = self._call(event)
        if not isinstance(answer, StepAnswer):
            raise CheckFailed(f"a step is answered with {answer}")
        return answer

    def keep_alive(self) -> KeepAliveAnswer:
        event = KeepAlive(
            time=self._machine.time,
            engine=ENGINE,
            completed_step=StepNumber(self._step),
            seen_revision=self._seen,
        )
        answer = self._call(event)
        if not isinstance(answer, KeepAliveAnswer):
            raise CheckFailed(f"a KeepAlive is answered with {answer}")
        return answer

    def _call(self, event: Step | KeepAlive) -> object:
        self._last_time = self._machine.time
        answer = self._machine.handle(event).answer
        if isinstance(answer, StepAnswer | KeepAliveAnswer):
            self._seen = answer.revision
        return answer
