"""A pool on a GPU, in this process's view of that device.

The device is named by its UUID: ordinals differ from process to process. Its context is made before the
tether is, so that where the process dies the kernel, which closes files in the order of their numbers, ends
its work on the device first, and the tether, whose end says that nobody writes any more, after that.
"""

import logging
import os
import weakref

from kvstore.client.errors import ClientError
from kvstore.cuda.bindings import load_driver
from kvstore.cuda.driver import CudaFailed, CudaUnavailable, Device, Driver
from kvstore.cuda.memory import DeviceMemory
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["DeviceFrames", "close_device", "device_uuid", "map_cuda", "open_device"]

log = logging.getLogger(__name__)


class DeviceFrames:
    """uint8[frame_count, frame_stride_bytes] on a GPU, writable and shared; a frame begins with its block.

    `torch.as_tensor(frames, device="cuda:N")`, with torch's number of that GPU, is a tensor of the same
    memory. Name it so: without a device torch makes a copy on the CPU, and "cuda" alone is the current one,
    which may be another. Where it has made a copy, `data_ptr()` is not `address`. Whatever is made from it so
    holds it; the memory is unmapped, and the tether ends, when the last of these has gone.
    """

    def __init__(self, address: int, shape: tuple[int, int], uuid: str) -> None:
        self.address = address
        self.shape = shape
        self.device_uuid = uuid

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        """Version 3: contiguous, writable, and nothing to wait for before it is used."""
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": "|u1",
            "data": (self.address, False),
            "strides": None,
            "stream": None,
        }


def device_uuid(handle: pb.PoolHandle) -> str:
    """Empty: not on a GPU."""
    if handle.HasField("cuda_ipc"):
        return handle.cuda_ipc.device_uuid
    return handle.cuda.device_uuid


def open_device(handle: pb.PoolHandle, driver: Driver | None) -> Device:
    """`driver`: this machine's by default. ClientError: it can't be used from here."""
    try:
        return (driver or load_driver()).open(device_uuid(handle))
    except (CudaUnavailable, CudaFailed) as error:
        raise ClientError(
            f"the pool of rank {handle.rank} is on {device_uuid(handle)}, which this process can't use: "
            f"{error} (CUDA_VISIBLE_DEVICES hides devices)"
        ) from error


def map_cuda(handle: pb.PoolHandle, device: Device, descriptors: list[int], tether: int) -> DeviceFrames:
    """Takes device and tether over; they end with the mapping, the tether last."""
    due = 1 if handle.HasField("cuda") else 0
    if len(descriptors) != due:
        raise ClientError(f"rank {handle.rank} came with {len(descriptors)} descriptors, not with {due}")
    try:
        with device.current():
            if due:
                memory = DeviceMemory.import_fd(device, descriptors[0], handle.cuda.size_bytes)
            else:
                ipc = handle.cuda_ipc
                memory = DeviceMemory.import_ipc(device, ipc.handle, ipc.size_bytes)
    except CudaFailed as error:
        raise ClientError(
            f"the pool of rank {handle.rank} can't be mapped on {device.uuid}: {error}"
        ) from error
    frames = DeviceFrames(
        memory.address, (handle.frame_count, handle.frame_stride_bytes), device_uuid(handle)
    )
    # As for host memory: not at exit, where the kernel sees to it.
    weakref.finalize(frames, _end, device, memory, tether, os.getpid()).atexit = False
    return frames


def _end(device: Device, memory: DeviceMemory, tether: int, pid: int) -> None:
    """Work that was given to the device may still use the memory: it is waited for. A forked child has the
    tether of its parent, but no context: it must leave the device alone.

    Where the device is lost, nothing of this process writes any more. Where anything else fails, the memory
    may be mapped still, and the tether stays until the process ends.
    """
    if os.getpid() == pid:
        try:
            with device.current():
                device.synchronize()
                memory.close()
        except CudaFailed as error:
            log.warning("a pool on %s may stay mapped: %s", device.uuid, error)
            if not error.is_lost:
                return
        close_device(device)
    os.close(tether)


def close_device(device: Device) -> None:
    """Its context is all that is left of it; one that is not taken back goes with the process."""
    try:
        device.close()
    except CudaFailed as error:
        log.warning("the context on %s is not given back: %s", device.uuid, error)
