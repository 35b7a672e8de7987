"""What forward passes computed, until it is known what they took: the service learns its costs from both.

Tests: tests/engine/test_engine.py, test_late_device.py.
"""

from collections.abc import Callable, Mapping
from functools import partial

from engine.requests import Work
from kvstore.client import operations
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["Timings"]


class Timings:
    """By steps whose work may not be over: what is told of it with its seconds."""

    def __init__(self) -> None:
        self._by_step: dict[int, Callable[[float], pb.StepTiming]] = {}

    def note(self, step: int, work: Work) -> None:
        """The work of this step, before its streams are counted as computed."""
        self._by_step[step] = partial(
            operations.timing,
            step,
            prefilled=[(stream.computed, work.chunk_tokens) for stream in work.prefilled],
            decoded=[stream.computed + 1 for stream in work.decoded],
        )

    def take(self, seconds: Mapping[int, float], completed_step: int) -> list[pb.StepTiming]:
        """Of the steps that are over; `seconds` of those of which they are known."""
        taken = [self._by_step[step](took) for step, took in seconds.items()]
        self._by_step = {step: each for step, each in self._by_step.items() if step > completed_step}
        return taken
