"""An engine on a GPU that is a stream whose work runs late, and a client that hears what the engine tells.

On a CPU, where nothing is late, the same can be heard: a step may be told while passes of it are to come.
"""

from collections.abc import Sequence
from typing import Any

import torch

from engine.batch import Batch
from engine.device import CpuDevice, Logits
from engine.gpu_device import GpuDevice
from engine.kv.store_client import Pool
from engine.model import Llama
from kvstore.client import Client, Layout, PendingStep
from kvstore.cuda.driver import Driver
from kvstore.v1 import kvstore_pb2 as pb
from tests.cuda.fake import fake_uuid
from tests.engine.late_stream import HostPoolAsGpu, LateStream

__all__ = ["CountedCpu", "HearingClient", "LateGpu", "late_engine"]


class LateGpu(GpuDevice):
    """`tells_truth` False is the planted fault: a pass is told as over when its work was given."""

    def __init__(self, seed: int, *, is_host_pool: bool = True, tells_truth: bool = True) -> None:
        self.stream = LateStream(seed)
        super().__init__(self.stream, "cuda:0", fake_uuid(0))
        self._is_host_pool = is_host_pool
        self._tells_truth = tells_truth
        # By pass: how much was given to the stream when it ended.
        self.given_by_pass: dict[int, int] = {0: 0}

    def open_pool(self, pool: Pool):
        self.given_by_pass = {0: 0}
        return super().open_pool(HostPoolAsGpu(pool, fake_uuid(0)) if self._is_host_pool else pool)  # type: ignore[arg-type]

    def end_pass(self, number: int) -> None:
        super().end_pass(number)
        self.given_by_pass[number] = self.stream.given

    def completed_pass(self) -> int:
        completed = super().completed_pass()
        return completed if self._tells_truth else max(self.given_by_pass)


class _Done:
    """What a CPU was given, and has run."""

    given = 0

    @property
    def run_count(self) -> int:
        return self.given


class CountedCpu(CpuDevice):
    """`stream`: as much of one as a `HearingClient` looks at."""

    def __init__(self) -> None:
        super().__init__()
        self.stream = _Done()

    def forward(self, model: Llama, batch: Batch, pool: torch.Tensor) -> Logits:
        self.stream.given += 1
        return super().forward(model, batch, pool)

    def copy_frames(
        self, frames: torch.Tensor, sources: Sequence[int], targets: Sequence[int], block_bytes: int
    ) -> None:
        self.stream.given += 1
        super().copy_frames(frames, sources, targets, block_bytes)


class HearingClient(Client):
    """Notes each completed step that it is told, and which of them were not.

    A step's work is what was given to the device before the next one's answer was taken: what this client
    sees by itself, whatever the engine counts.
    """

    def __init__(self, address: str, device: LateGpu | CountedCpu, cuda: Driver | None = None) -> None:
        super().__init__(address, deadline_seconds=20.0, cuda=cuda)
        self._device = device
        self.told: list[int] = []
        self.ahead: list[int] = []
        self.timings: list[pb.StepTiming] = []
        # Steps that were sent while work of earlier ones was under way, as the engine knew; and as it was.
        self.overtaking = self.beside_work = 0
        # By step: how much had been given when the next one's answer was taken.
        self._given_by_step = {0: 0}
        # That the last step was told to have had in all, by an engine that will give it no more.
        self._told_as_all: int | None = None

    def attach(self, layout: Layout, **options: Any) -> None:
        """Steps count anew."""
        super().attach(layout, **options)
        self._given_by_step, self._told_as_all = {0: 0}, None

    def start_step(
        self,
        operations: Sequence[pb.Operation],
        *,
        completed_step: int,
        timings: Sequence[pb.StepTiming] = (),
    ) -> PendingStep:
        self._hear(completed_step)
        assert all(timing.step <= completed_step for timing in timings)
        self.timings += timings
        self.overtaking += completed_step < self.next_step - 1
        self.beside_work += self._device.stream.run_count < self._device.stream.given
        pending = super().start_step(operations, completed_step=completed_step, timings=timings)
        return _Heard(self, pending)  # type: ignore[return-value]

    def wait_events(self, seconds: float, *, completed_step: int | None = None) -> list[pb.Event]:
        assert completed_step is not None
        self._hear(completed_step)
        return super().wait_events(seconds, completed_step=completed_step)

    def detach(self) -> None:
        """It is the engine's word that no work is under way."""
        assert self._device.stream.run_count == self._device.stream.given
        super().detach()

    def note_answer(self, step: int) -> None:
        given = self._device.stream.given
        if self._told_as_all not in (None, given):
            self.ahead.append(step - 1)
        self._told_as_all = None
        self._given_by_step[step - 1] = given

    def _hear(self, step: int) -> None:
        self.told.append(step)
        given = self._given_by_step.get(step)
        if given is None:
            given = self._told_as_all = self._device.stream.given
        if self._device.stream.run_count < given:
            self.ahead.append(step)


class _Heard:
    def __init__(self, client: HearingClient, pending: PendingStep) -> None:
        self._client, self._pending = client, pending
        self._is_noted = False

    def result(self) -> pb.StepResponse:
        response = self._pending.result()
        if not self._is_noted:
            self._client.note_answer(response.step)
            self._is_noted = True
        return response


def late_engine(model: Llama, seed: int) -> tuple[Llama, LateGpu]:
    """The same model, on a device of its own."""
    device = LateGpu(seed)
    return Llama(device.place(model.weights)), device
