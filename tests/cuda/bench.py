"""What tests of the CUDA tier are made on: devices that are a fake, their threads, pools of both sides."""

import ctypes
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from kvstore.core.effects import Transfer
from kvstore.core.types import Frame, Link, TransferId, Urgency
from kvstore.cuda.driver import DeviceFound
from kvstore.tiers.cuda_pool import CudaPool
from kvstore.tiers.cuda_thread import CudaThread
from kvstore.tiers.pool import HostPool
from tests.cuda.fake import FakeDriver
from tests.cuda.fake_device import FakeDevice

__all__ = ["BLOCK_BYTES", "WAIT", "CudaBench", "Ends", "cuda_bench", "transfer"]

WAIT = 60.0  # Nothing takes so long.
BLOCK_BYTES = 6000  # Not a multiple of a page.


@dataclass
class CudaBench:
    driver: FakeDriver
    threads: tuple[CudaThread, ...]
    gpu: CudaPool
    cpu: HostPool

    @property
    def devices(self) -> list[FakeDevice]:
        return list(self.driver.by_uuid.values())

    def write_gpu(self, rank: int, frame: int, content: bytes) -> None:
        """As the engine's kernels would; nothing may be under way there."""
        self._view(rank, frame)[: len(content)] = np.frombuffer(content, np.uint8)

    def read_gpu(self, rank: int, frame: int) -> bytes:
        return self._view(rank, frame)[:BLOCK_BYTES].tobytes()

    def _view(self, rank: int, frame: int) -> np.ndarray:
        at = self.gpu.address(rank) + frame * self.gpu.stride_bytes
        return np.ctypeslib.as_array((ctypes.c_uint8 * self.gpu.stride_bytes).from_address(at))


@contextmanager
def cuda_bench(
    seed: int = 0,
    *,
    ranks: int = 1,
    frames: int = 32,
    cpu_frames: int = 48,
    check_left: bool = True,
    **options: bool | int,
) -> Iterator[CudaBench]:
    driver = FakeDriver(seed, devices=ranks, **options)  # type: ignore[arg-type]
    found: Sequence[DeviceFound] = driver.devices()
    threads = tuple(CudaThread(driver, device.uuid) for device in found)
    try:
        with (
            HostPool("cpu", cpu_frames, BLOCK_BYTES, ranks) as cpu,
            CudaPool("gpu", frames, BLOCK_BYTES, threads, option="--gpu") as gpu,
        ):
            yield CudaBench(driver, threads, gpu, cpu)
    finally:
        for device in driver.by_uuid.values():
            device.streams.resume()
        closed = [thread.close(WAIT) for thread in threads]
        driver.close()
    assert all(closed)
    for device in driver.by_uuid.values():
        if check_left:
            assert not device.left_behind


@dataclass
class Ends:
    """What the movers told, by transfer."""

    failed: dict[int, tuple[int, ...]] = field(default_factory=dict)
    told: threading.Condition = field(default_factory=threading.Condition)

    def __call__(self, number: TransferId, failed: tuple[int, ...], late: tuple[int, ...]) -> None:
        assert not late
        with self.told:
            assert number not in self.failed, "ended twice"
            self.failed[number] = failed
            self.told.notify_all()

    def wait(self, count: int) -> dict[int, tuple[int, ...]]:
        with self.told:
            assert self.told.wait_for(lambda: len(self.failed) >= count, WAIT), self.failed
        return self.failed


def transfer(
    number: int,
    link: Link,
    sources: Sequence[int],
    targets: Sequence[int],
    urgency: Urgency = Urgency.ASKED,
) -> Transfer:
    return Transfer(
        id=TransferId(number),
        source=link[0],
        target=link[1],
        source_frames=tuple(map(Frame, sources)),
        target_frames=tuple(map(Frame, targets)),
        urgency=urgency,
    )
