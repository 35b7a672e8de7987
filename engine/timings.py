"""What passes computed, until it is known what they took: the service learns its costs from both.

Tests: tests/engine/test_engine.py, test_steps.py, test_late_device.py.
"""

from collections.abc import Callable, Mapping
from functools import partial

from engine.requests import Work
from kvstore.client import operations
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["Timings"]


class Timings:
    """By passes whose work may not be over; and of those that are, as long as their step is not."""

    def __init__(self) -> None:
        self._by_pass: dict[int, tuple[int, Callable[[float], pb.StepTiming]]] = {}
        self._known: list[pb.StepTiming] = []

    def note(self, number: int, step: int, work: Work) -> None:
        """The work of a pass of this step, before its streams are counted as computed."""
        self._by_pass[number] = (
            step,
            partial(
                operations.timing,
                step,
                prefilled=[(stream.computed, work.chunk_tokens) for stream in work.prefilled],
                decoded=[stream.computed + 1 for stream in work.decoded],
            ),
        )

    def take(self, seconds: Mapping[int, float], completed_step: int) -> list[pb.StepTiming]:
        """Of the steps that are over. `seconds`: what passes took, of those of which it has become known."""
        self._known += [self._by_pass[number][1](took) for number, took in seconds.items()]
        self._by_pass = {
            number: (step, timing)
            for number, (step, timing) in self._by_pass.items()
            if step > completed_step and number not in seconds
        }
        taken = [timing for timing in self._known if timing.step <= completed_step]
        self._known = [timing for timing in self._known if timing.step > completed_step]
        return taken
