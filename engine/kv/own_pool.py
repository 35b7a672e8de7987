"""Frames in memory of the engine's own, in the host's or on a GPU, as a service's pools are seen."""

import numpy as np
import numpy.typing as npt
import torch

from kvstore.client import ClientError, DeviceFrames

__all__ = ["GpuPool", "HostPool"]


class HostPool:
    """All pages are there from the start."""

    device_uuid = ""

    def __init__(self, frame_count: int, stride_bytes: int) -> None:
        self.frames: npt.NDArray[np.uint8] = np.full((frame_count, stride_bytes), 0, dtype=np.uint8)

    @property
    def device_frames(self) -> DeviceFrames:
        raise ClientError("this pool is in host memory: use frames")


class GpuPool:
    """`memory`: uint8[frames, stride] on that GPU."""

    def __init__(self, memory: torch.Tensor, uuid: str) -> None:
        self.device_uuid = uuid
        self.device_frames: DeviceFrames = _Held(memory, uuid)

    @property
    def frames(self) -> npt.NDArray[np.uint8]:
        raise ClientError("this pool is on a GPU: use device_frames")


class _Held(DeviceFrames):
    """A tensor made of these frames holds them, and they the memory."""

    def __init__(self, memory: torch.Tensor, uuid: str) -> None:
        frame_count, stride_bytes = memory.shape
        super().__init__(memory.data_ptr(), (frame_count, stride_bytes), uuid)
        self._memory = memory
