"""How far the work is, in the contract's steps: what is told as completed, and what it took.

Passes run on what the last answer allows, and are that step's work: one pass, or some where the steps behind
it were left out. The step is over when the last of them is, after which no more come to it.
Tests: tests/engine/test_steps.py, test_late_device.py, test_left_out.py.
"""

from collections import deque

from engine.device import Device
from engine.requests import Work
from engine.timings import Timings
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["Steps"]


class Steps:
    """Of one attachment, from its first step on."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._timings = Timings()
        # The one that is being put together.
        self._pass = 1
        # Steps that get no more passes, each with its last one.
        self._ended: deque[tuple[int, int]] = deque()
        self._completed = 0

    @property
    def is_busy(self) -> bool:
        """Whether something may not be over, as `completed` has last seen it."""
        return self._device.is_busy

    def note_work(self, step: int, work: Work) -> None:
        """Of this pass, before its streams are counted as computed."""
        self._timings.note(self._pass, step, work)

    def end_pass(self) -> None:
        """All its work has been given to the device."""
        self._device.end_pass(self._pass)
        self._pass += 1

    def end_step(self, step: int) -> None:
        """It has had its last pass."""
        self._ended.append((step, self._pass - 1))

    def completed(self) -> int:
        """The last step whose work is over, with all before it; 0: none. Doesn't wait."""
        completed_pass = self._device.completed_pass()
        while self._ended and self._ended[0][1] <= completed_pass:
            self._completed, _ = self._ended.popleft()
        return self._completed

    def take_timings(self) -> list[pb.StepTiming]:
        """Of passes of completed steps, each told once."""
        return self._timings.take(self._device.take_seconds(), self._completed)
