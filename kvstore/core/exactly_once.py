"""Each step of an engine is taken exactly once: told again it gets the answer of the first time.

An engine numbers its steps, or leaves that to the store and makes unary calls, one operation each.
"""

from collections.abc import Callable

from kvstore.core.answers import StepAnswer
from kvstore.core.bounds import check_completed, check_timings
from kvstore.core.calls import Single, Step
from kvstore.core.checking import check_operations
from kvstore.core.config import StoreConfig
from kvstore.core.engines import Engine
from kvstore.core.errors import StepChanged, StepGap, StepMixed
from kvstore.core.membership import Membership
from kvstore.core.news import News
from kvstore.core.phases import Phases
from kvstore.core.ports import SwapPolicy
from kvstore.core.sequences import Sequence
from kvstore.core.steps import Steps
from kvstore.core.types import StepNumber

__all__ = ["ExactlyOnce"]


class ExactlyOnce:
    """Numbers, retries and the kept answer; what a step does is said in `steps.py`."""

    def __init__(
        self,
        config: StoreConfig,
        membership: Membership,
        steps: Steps,
        news: News,
        policy: SwapPolicy,
        moved: Callable[[Sequence], None],
    ) -> None:
        self._config = config
        self._membership = membership
        self._steps = steps
        self._news = news
        # Told how long steps took.
        self._policy = policy
        # Told each sequence that the store has moved to make room.
        self._moved = moved

    def take(self, event: Step) -> StepAnswer:
        """The kept answer, if it is the last one again."""
        engine = self._membership.get(event.engine, event.time)
        last = engine.last_event
        if isinstance(last, Single):
            raise StepMixed(
                "this engine makes unary calls", field="step", value=event.step, remedy="use one style only"
            )
        if isinstance(last, Step) and engine.last_answer and event.step == engine.last_step:
            asked_before = (last.operations, last.completed_step, last.timings)
            if (event.operations, event.completed_step, event.timings) != asked_before:
                raise StepChanged(
                    "the step was taken already, with other content",
                    field="step",
                    value=event.step,
                    remedy="retry with the same operations, or use the next number",
                )
            return engine.last_answer
        if event.step != engine.last_step + 1:
            raise StepGap(
                f"the last step was {engine.last_step}",
                field="step",
                value=event.step,
                remedy=f"the next one is {engine.last_step + 1}",
            )
        check_completed(event.completed_step, engine.completed_step, StepNumber(event.step - 1))
        if event.timings:
            check_timings(self._config, event)
        return self._take(engine, event, event.step, event.completed_step)

    def take_single(self, event: Single) -> StepAnswer:
        """A step of one operation, with no work of the engine in flight."""
        engine = self._membership.get(event.engine, event.time)
        if isinstance(engine.last_event, Step):
            raise StepMixed(
                "this engine takes steps", field="engine", value=event.engine, remedy="use one style only"
            )
        return self._take(engine, event, StepNumber(engine.last_step + 1), engine.last_step)

    def _take(
        self, engine: Engine, event: Step | Single, step: StepNumber, completed: StepNumber
    ) -> StepAnswer:
        phases = Phases(event.operations if isinstance(event, Step) else (event.operation,))
        check_operations(self._config, engine, phases)
        engine.last_step, engine.last_event = step, event
        if isinstance(event, Step) and event.timings:
            self._policy.note_timings(event.timings, event.time)
        results, copies, moved = self._steps.apply(engine, step, completed, phases, event.time)
        for sequence in moved:
            self._moved(sequence)
        self._news.watch_pressure(event.time)
        engine.last_answer = StepAnswer(
            step=step,
            results=results,
            copies=copies,
            revision=self._news.revision,
            notices=self._news.of(engine),
            lease_expire_time=engine.lease_expire_time,
        )
        # The answer is kept for a retry, so this has been told for good.
        engine.forget_news(self._news.revision)
        return engine.last_answer
