"""A stream of work on a GPU, as torch has it: work is given, and runs in the order in which it was given.

What the engine asks of a stream is little enough that the tests have another, whose work really runs late
(tests/engine/late_stream.py). This one has not met a GPU yet.
"""

from collections.abc import Callable
from typing import Protocol

import torch

from engine.passes import Event
from kvstore.client import DeviceFrames

__all__ = ["Capture", "CudaStream", "Stream"]

# Makes of a computation over tensors that stay where they are one that is launched as a whole. What it
# returns runs it again, and gives the same tensor each time.
Capture = Callable[[Callable[[], torch.Tensor]], Callable[[], torch.Tensor]]


class Stream(Protocol):
    """`device`: where its tensors are."""

    @property
    def device(self) -> torch.device: ...

    def run(self, work: Callable[[], None]) -> None:
        """Gives it `work`: calls of torch and kernels, which may run at any time after all given before."""

    def record(self) -> Event:
        """An event behind all that was given so far."""

    def host_tensor(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """In host memory that the device copies to and from by itself."""

    def tensor_of(self, frames: DeviceFrames) -> torch.Tensor:
        """uint8[frame_count, frame_stride_bytes]: the same memory, held by the tensor."""

    def make_capture(self) -> Capture:
        """To be called within `run`, as what it makes. All that one makes may share memory for what lies
        between inputs and result: no two run at once."""


class CudaStream:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        # It waits for nothing that others give to the default stream, nor they for it.
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch has no types here.

    @property
    def device(self) -> torch.device:
        return self._device

    def run(self, work: Callable[[], None]) -> None:
        with torch.cuda.stream(self._stream):
            work()

    def record(self) -> "CudaEvent":
        return CudaEvent(self._stream)

    def host_tensor(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        # Pinned by this device's context; by default it would be that of the first.
        with torch.cuda.device(self._device):
            return torch.empty(shape, dtype=dtype, pin_memory=True)

    def tensor_of(self, frames: DeviceFrames) -> torch.Tensor:
        """The device is named by its number: without one torch makes a copy on the CPU, and "cuda" alone is
        the current one."""
        tensor = torch.as_tensor(frames, device=self._device)
        if tensor.device != self._device or tensor.data_ptr() != frames.address:
            raise RuntimeError(f"torch has made a copy of the pool, on {tensor.device}")
        return tensor

    def make_capture(self) -> Capture:
        memory = torch.cuda.graph_pool_handle()

        def capture(compute: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
            # Kernels are compiled and libraries make their rooms: none of it could be captured.
            compute()
            self._stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            # Other threads of this process, the client's for one, may call the driver meanwhile.
            with torch.cuda.graph(graph, pool=memory, stream=self._stream, capture_error_mode="thread_local"):
                result = compute()

            def replay() -> torch.Tensor:
                graph.replay()
                return result

            return replay

        return capture


class CudaEvent:
    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self.event.record(stream)

    def is_done(self) -> bool:
        return bool(self.event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        self.event.synchronize()

    def seconds_since(self, earlier: Event) -> float:
        if not isinstance(earlier, CudaEvent):
            raise TypeError("events of two kinds have no time between them")
        return float(earlier.event.elapsed_time(self.event)) / 1e3
