"""A GPU's stream whose work runs late, by seed: nothing runs when it is given, some when an event is asked.

`GpuDevice` over it is a GPU in all that has to do with order. Tensors are in host memory, so what runs late
meets the pool as it is by then: a frame that the service has given to somebody else meanwhile is overwritten,
as a GPU would.
"""

import ctypes
import random
import time
from collections import deque
from collections.abc import Callable

import numpy as np
import torch

from engine.gpu_stream import Capture
from engine.kv.store_client import Pool
from engine.passes import Event
from kvstore.client import DeviceFrames

__all__ = ["HostPoolAsGpu", "LateStream"]

Compute = Callable[[], torch.Tensor]


class LateStream:
    """`is_stalled`: nothing runs by itself; who waits for an event gets it all the same."""

    def __init__(self, seed: int) -> None:
        self.is_stalled = False
        self.given = self.run_count = 0
        # How often an event was asked that was not done.
        self.not_done = 0
        self._random = random.Random(seed)
        self._waiting: deque[Callable[[], None]] = deque()
        self.ended_at: dict[int, float] = {0: time.perf_counter()}

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def run(self, work: Callable[[], None]) -> None:
        self._waiting.append(work)
        self.given += 1

    def record(self) -> "LateEvent":
        return LateEvent(self, self.given)

    def host_tensor(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype)

    def tensor_of(self, frames: DeviceFrames) -> torch.Tensor:
        if isinstance(frames, np.ndarray):
            return torch.from_numpy(frames)
        size = frames.shape[0] * frames.shape[1]
        memory = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(frames.address))
        tensor = torch.from_numpy(memory.reshape(frames.shape))
        tensor.held = frames  # type: ignore[attr-defined]
        return tensor

    def make_capture(self) -> Capture:
        """Captured work is the same computation over the same tensors, each time anew."""

        def capture(compute: Compute) -> Compute:
            compute()
            return compute

        return capture

    def run_some(self) -> None:
        """What the device has done meanwhile."""
        for _ in range(0 if self.is_stalled else self._random.randint(0, 1)):
            self.run_one()

    def run_one(self) -> None:
        if self._waiting:
            self._waiting.popleft()()
            self.run_count += 1
            self.ended_at[self.run_count] = time.perf_counter()


class LateEvent:
    def __init__(self, stream: LateStream, place: int) -> None:
        self._stream = stream
        self.place = place

    def is_done(self) -> bool:
        self._stream.run_some()
        is_done = self._stream.run_count >= self.place
        self._stream.not_done += not is_done
        return is_done

    def wait(self) -> None:
        while self._stream.run_count < self.place:
            self._stream.run_one()

    def seconds_since(self, earlier: Event) -> float:
        assert isinstance(earlier, LateEvent)
        assert self._stream.run_count >= self.place
        return max(1e-6, self._stream.ended_at[self.place] - self._stream.ended_at[earlier.place])


class HostPoolAsGpu:
    """A mapped pool of a service without a GPU, that says it were on one."""

    def __init__(self, pool: Pool, uuid: str) -> None:
        self.device_uuid = uuid
        self.device_frames = pool.frames
