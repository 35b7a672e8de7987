"""Where an engine computes: what differs between a CPU and a GPU, and nothing else.

On a CPU work is over when the call returns. On a GPU it is only begun then: it goes on behind later calls,
and a pass is over only when an event behind its work says so (`engine/gpu_device.py`). The engine is written
for the second, of which the first is a case.
"""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from engine.batch import Batch
from engine.kv.own_pool import HostPool
from engine.kv.store_client import Pool
from engine.model import Llama
from engine.weights import Weights
from kernels.copy_blocks import copy_blocks

__all__ = ["CpuDevice", "Device", "DeviceRefused", "Logits"]

# Waits for what was computed: fp32[sequences, vocab], in host memory.
Logits = Callable[[], torch.Tensor]


class DeviceRefused(Exception):
    """There is no such device, or the service's pool is elsewhere; the message says what to do."""


class Device(Protocol):
    """Of one engine, which counts its passes here; used by one thread."""

    @property
    def is_late(self) -> bool:
        """Whether calls return before their work is over: steps are best sent while the one before runs."""

    def place(self, weights: Weights) -> Weights:
        """The same model on this device, under the same digest."""

    def make_pool(self, frame_count: int, stride_bytes: int) -> Pool:
        """Frames here that no service has. Raises MemoryError."""

    def open_pool(self, pool: Pool) -> torch.Tensor:
        """uint8[frames, frame_stride_bytes]: the pool's own memory, until `let_go`. Passes count anew.

        Raises DeviceRefused where that memory isn't on this device.
        """

    def let_go(self) -> None:
        """Waits for all work, and keeps nothing of the pool. The caller drops its tensors after that."""

    def forward(self, model: Llama, batch: Batch, pool: torch.Tensor) -> Logits:
        """Begins `Llama.forward`; `batch` is in host memory and must not change any more."""

    def copy_frames(
        self, frames: torch.Tensor, sources: Sequence[int], targets: Sequence[int], block_bytes: int
    ) -> None:
        """Copies blocks from frame to frame, behind all that was begun and before all that will be. No
        target is a source of another."""

    def read(self, frames: torch.Tensor, frame: int, size: int) -> memoryview:
        """The first bytes of a frame, after all that was begun."""

    def end_pass(self, number: int) -> None:
        """All that was begun since the last such call is this pass: 1, 2, 3 …"""

    def completed_pass(self) -> int:
        """The last pass whose work is over, with all before it; 0: none. Doesn't wait."""

    @property
    def is_busy(self) -> bool:
        """Whether a pass that has ended here may not be over, as `completed_pass` has last seen it."""

    def take_seconds(self) -> dict[int, float]:
        """What the forwards of completed passes took, each told once by its number. Of some nothing is
        known."""


class CpuDevice:
    is_late = False

    def __init__(self) -> None:
        self._completed = 0
        self._seconds: dict[int, float] = {}
        self._spent = 0.0

    def place(self, weights: Weights) -> Weights:
        return weights

    def make_pool(self, frame_count: int, stride_bytes: int) -> Pool:
        return HostPool(frame_count, stride_bytes)

    def open_pool(self, pool: Pool) -> torch.Tensor:
        if pool.device_uuid:
            raise DeviceRefused(
                f"the service's pool is on {pool.device_uuid}, and this engine computes on the CPU; remedy: "
                "an engine with --device cuda, or a service without --gpu-device"
            )
        self.let_go()
        return torch.from_numpy(pool.frames)

    def let_go(self) -> None:
        self._completed, self._seconds, self._spent = 0, {}, 0.0

    def forward(self, model: Llama, batch: Batch, pool: torch.Tensor) -> Logits:
        begin = time.perf_counter()
        logits = model.forward(batch, pool)
        self._spent += time.perf_counter() - begin
        return lambda: logits

    def copy_frames(
        self, frames: torch.Tensor, sources: Sequence[int], targets: Sequence[int], block_bytes: int
    ) -> None:
        copy_blocks(frames, torch.tensor(sources), torch.tensor(targets), block_bytes)

    def read(self, frames: torch.Tensor, frame: int, size: int) -> memoryview:
        return frames[frame, :size].numpy().data

    def end_pass(self, number: int) -> None:
        self._completed = number
        if self._spent:
            self._seconds[number], self._spent = self._spent, 0.0

    def completed_pass(self) -> int:
        return self._completed

    @property
    def is_busy(self) -> bool:
        return False

    def take_seconds(self) -> dict[int, float]:
        taken, self._seconds = self._seconds, {}
        return taken
