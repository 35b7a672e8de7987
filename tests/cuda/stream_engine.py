"""An engine whose kernels run on a stream of their own, on the same fake GPU as the service's copies.

Nothing orders its stream against those of the service but what it tells as completed. It runs ahead: a step's
kernel is launched, and the next step is sent at once. Told the truth, the fences hold back what must wait;
`tells_truth` False is the planted fault, where they order nothing.
"""

import asyncio
import ctypes
import time
from collections.abc import Sequence

from kvstore.core.answers import KeepAliveAnswer, SequenceAnswer, StepAnswer
from kvstore.core.calls import GetSequence, KeepAlive, Step
from kvstore.core.operations import AllocateResult, Operation, SwapResult
from kvstore.core.types import Frame, Outcome, Retention, SequenceId, SequenceState, StepNumber
from kvstore.server.attaching import Attached
from kvstore.server.clock import now
from kvstore.server.driver import Driver
from kvstore.tiers.cuda_pool import CudaPool
from tests.core.ops import allocate, free, swap_in, swap_out
from tests.cuda.bench import WAIT
from tests.cuda.fake_device import FakeDevice
from tests.cuda.fake_streams import Step as Work
from tests.server.driving import LAYOUT

__all__ = ["StreamEngine"]

BLOCK = LAYOUT.block_bytes
# A kernel touches each frame in so many parts: copies come in between, if anything lets them.
PARTS = 4
PART = BLOCK // PARTS


class StreamEngine:
    def __init__(
        self, driver: Driver, attached: Attached, device: FakeDevice, *, tells_truth: bool = True
    ) -> None:
        assert isinstance(attached.pools.gpu, CudaPool)
        self.wrong: list[str] = []
        self._driver = driver
        self._id = attached.answer.engine
        self._gpu = attached.pools.gpu
        self._device = device
        self._stream = device.streams.add()
        self._tells_truth = tells_truth
        self._steps = 0
        # By its last kernel that has ended.
        self._completed = 0

    def step(self, *operations: Operation) -> StepAnswer:
        self._steps += 1
        completed = self._completed if self._tells_truth else self._steps - 1
        event = Step(
            time=now(),
            engine=self._id,
            step=StepNumber(self._steps),
            completed_step=StepNumber(completed),
            operations=operations,
        )
        return self._driver.ask(event, StepAnswer)

    def launch(self, kernel: Sequence[Work] = ()) -> None:
        """The work of the step that was sent last."""
        number = self._steps

        def end() -> None:
            self._completed = number

        self._device.streams.put(self._stream, [*kernel, end])

    # --- Kernels.

    def writing(self, frames: Sequence[Frame], number: int) -> list[Work]:
        """What a block holds tells whose it is, by place."""
        return [
            self._write(frame, place, part, number)
            for part in range(PARTS)
            for place, frame in enumerate(frames)
        ]

    def reading(self, frames: Sequence[Frame], number: int, times: int = 1) -> list[Work]:
        """Notes what it finds wrong when it runs."""
        return [
            self._read(frame, place, part, number)
            for _ in range(times)
            for part in range(PARTS)
            for place, frame in enumerate(frames)
        ]

    def _write(self, frame: Frame, place: int, part: int, number: int) -> Work:
        at, content = self._at(frame) + part * PART, _content(number, place)

        def write() -> None:
            ctypes.memmove(at, content, PART)

        return write

    def _read(self, frame: Frame, place: int, part: int, number: int) -> Work:
        at, content = self._at(frame) + part * PART, _content(number, place)

        def read() -> None:
            if ctypes.string_at(at, PART) != content:
                self.wrong.append(f"block {place} of {number}, part {part}")

        return read

    def _at(self, frame: Frame) -> int:
        return self._gpu.address(0) + frame * self._gpu.stride_bytes

    # --- What takes several steps.

    async def allocate(self, sequence: int, blocks: int) -> Sequence[Frame]:
        """One step, after which there is a kernel to be launched; asked again where room is on its way."""
        end = time.monotonic() + WAIT
        while True:
            [result] = self.step(allocate(sequence, blocks * LAYOUT.block_tokens)).results
            assert isinstance(result, AllocateResult)
            if result.outcome is Outcome.OK:
                return result.block_table
            self.launch()
            assert time.monotonic() < end
            await asyncio.sleep(0.0005)

    def swap_out(self, sequence: int, blocks: int) -> None:
        self.step(swap_out(sequence, blocks * LAYOUT.block_tokens))
        self.launch()

    async def swap_in(self, sequence: int, *others: Operation) -> Sequence[Frame]:
        """With `others` in the same step; returns its frames when they are filled."""
        end = time.monotonic() + WAIT
        while True:
            result = self.step(*others, swap_in(sequence)).results[-1]
            self.launch()
            assert isinstance(result, SwapResult)
            if result.outcome is Outcome.OK:
                break
            others = ()
            assert time.monotonic() < end
            await asyncio.sleep(0.0005)
        return (await self.until(sequence, SequenceState.RESIDENT)).block_table

    def discard(self, *sequences: int) -> None:
        self.step(free(*sequences, retention=Retention.DISCARD))
        self.launch()

    async def until(self, sequence: int, state: SequenceState) -> SequenceAnswer:
        """Tells meanwhile what has completed, as an engine that waits does."""
        end = time.monotonic() + WAIT
        while True:
            completed = self._completed if self._tells_truth else self._steps
            event = KeepAlive(time=now(), engine=self._id, completed_step=StepNumber(completed))
            self._driver.ask(event, KeepAliveAnswer)
            asked = GetSequence(time=now(), engine=self._id, sequence=SequenceId(sequence))
            answer = self._driver.ask(asked, SequenceAnswer)
            if answer.state is state:
                return answer
            assert time.monotonic() < end, answer
            await asyncio.sleep(0.0005)

    async def finish(self) -> None:
        """Until all kernels have run."""
        end = time.monotonic() + WAIT
        while self._completed < self._steps:
            assert time.monotonic() < end
            await asyncio.sleep(0.0005)


def _content(number: int, place: int) -> bytes:
    return (number * 1024 + place).to_bytes(8, "little") * (PART // 8)
