"""An engine on a GPU that is a stream whose work runs late, and a client that hears what the engine tells."""

from collections.abc import Sequence

from engine.gpu_device import GpuDevice
from engine.kv.store_client import Pool
from engine.model import Llama
from kvstore.client import Client, PendingStep
from kvstore.cuda.driver import Driver
from kvstore.v1 import kvstore_pb2 as pb
from tests.cuda.fake import fake_uuid
from tests.engine.late_stream import HostPoolAsGpu, LateStream

__all__ = ["HearingClient", "LateGpu", "late_engine"]


class LateGpu(GpuDevice):
    """`tells_truth` False is the planted fault: a step is told as completed when its work was given."""

    def __init__(self, seed: int, *, is_host_pool: bool = True, tells_truth: bool = True) -> None:
        self.stream = LateStream(seed)
        super().__init__(self.stream, "cuda:0", fake_uuid(0))
        self._is_host_pool = is_host_pool
        self._tells_truth = tells_truth
        # By step: how much was given to the stream when it ended.
        self.given_by_step: dict[int, int] = {0: 0}

    def open_pool(self, pool: Pool):
        self.given_by_step = {0: 0}
        return super().open_pool(HostPoolAsGpu(pool, fake_uuid(0)) if self._is_host_pool else pool)  # type: ignore[arg-type]

    def end_step(self, step: int) -> None:
        super().end_step(step)
        self.given_by_step[step] = self.stream.given

    def completed_step(self) -> int:
        completed = super().completed_step()
        return completed if self._tells_truth else max(self.given_by_step)

    def is_over(self, step: int) -> bool:
        return self.stream.run_count >= self.given_by_step[step]


class HearingClient(Client):
    """Notes each completed step that it is told, and which of them were not."""

    def __init__(self, address: str, device: LateGpu, cuda: Driver | None = None) -> None:
        super().__init__(address, deadline_seconds=20.0, cuda=cuda)
        self._device = device
        self.told: list[int] = []
        self.ahead: list[int] = []
        # Steps that were sent while work of earlier ones was under way.
        self.overtaking = 0

    def start_step(
        self,
        operations: Sequence[pb.Operation],
        *,
        completed_step: int,
        timings: Sequence[pb.StepTiming] = (),
    ) -> PendingStep:
        self._hear(completed_step)
        assert all(timing.step <= completed_step for timing in timings)
        self.overtaking += completed_step < self.next_step - 1
        return super().start_step(operations, completed_step=completed_step, timings=timings)

    def wait_events(self, seconds: float, *, completed_step: int | None = None) -> list[pb.Event]:
        assert completed_step is not None
        self._hear(completed_step)
        return super().wait_events(seconds, completed_step=completed_step)

    def detach(self) -> None:
        """It is the engine's word that no work is under way."""
        assert self._device.stream.run_count == self._device.stream.given
        super().detach()

    def _hear(self, step: int) -> None:
        self.told.append(step)
        if not self._device.is_over(step):
            self.ahead.append(step)


def late_engine(model: Llama, seed: int) -> tuple[Llama, LateGpu]:
    """The same model, on a device of its own."""
    device = LateGpu(seed)
    return Llama(device.place(model.weights)), device
