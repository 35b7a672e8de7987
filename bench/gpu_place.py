"""Where a part of the check runs: a GPU, as torch and the driver see it.

For the tests there is a place without one: torch on the CPU, over a driver whose devices are host memory.
What is measured there means nothing, and nothing of it is kept.
"""

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from kvstore.client import DeviceFrames
from kvstore.cuda.bindings import load_driver
from kvstore.cuda.driver import CudaUnavailable, Driver

__all__ = ["NoGpu", "Place", "find_place"]


class NoGpu(Exception):
    """Nothing can be measured here; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Place:
    """`name`: cuda:0, or cpu in tests. `uuid`: as the driver has it; empty: without any driver."""

    name: str
    uuid: str
    gpu: str

    @property
    def device(self) -> torch.device:
        return torch.device(self.name)

    @property
    def is_gpu(self) -> bool:
        return self.device.type == "cuda"

    def driver(self) -> Driver:
        return load_driver()

    def synchronize(self) -> None:
        if self.is_gpu:
            torch.cuda.synchronize(self.device)

    def seconds(self, work: Callable[[], object], times: int = 1) -> float:
        """What one `work` takes on the device, of `times` given one behind the other."""
        if not self.is_gpu:
            began = time.perf_counter()
            for _ in range(times):
                work()
            return (time.perf_counter() - began) / times
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        self.synchronize()
        begin.record()
        for _ in range(times):
            work()
        end.record()
        self.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / times

    def tensor(self, address: int, rows: int, row_bytes: int) -> torch.Tensor:
        """uint8[rows, row_bytes]: memory of the driver. Whoever has it keeps the memory mapped."""
        if self.is_gpu:
            with torch.cuda.device(self.device):
                return torch.as_tensor(DeviceFrames(address, (rows, row_bytes), self.uuid))
        memory = np.ctypeslib.as_array((ctypes.c_uint8 * (rows * row_bytes)).from_address(address))
        return torch.from_numpy(memory.reshape(rows, row_bytes))


def find_place(name: str = "cuda") -> Place:
    """The first GPU; `cpu`: for tests. Raises NoGpu."""
    if name == "cpu":
        try:
            return Place("cpu", load_driver().devices()[0].uuid, "none")
        except CudaUnavailable:
            return Place("cpu", "", "none")
    try:
        found = load_driver().devices()
    except CudaUnavailable as error:
        raise NoGpu(str(error)) from error
    if not torch.cuda.is_available():
        why = "is one for CPUs" if torch.version.cuda is None else "can't use the GPU"
        raise NoGpu(f"there is {found[0]}, but torch {torch.__version__} {why}: install a torch with CUDA")
    uuid = f"GPU-{str(torch.cuda.get_device_properties(0).uuid).removeprefix('GPU-')}"
    names = {each.uuid: each.name for each in found}
    if uuid not in names:
        raise NoGpu(f"torch's first GPU is {uuid}, and the driver sees {', '.join(map(str, found))}")
    return Place("cuda:0", uuid, names[uuid])
