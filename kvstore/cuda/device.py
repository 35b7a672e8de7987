"""One device by calls of the driver. Each method is one of them, as `driver.py` has them in plain terms."""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kvstore.cuda.calls import Calls
from kvstore.cuda.driver import CudaFailed

__all__ = ["CudaDevice"]

IPC_HANDLE_BYTES = 64


class CudaDevice:
    """`number`: what the driver calls it in this process."""

    def __init__(self, calls: Calls, number: Any, uuid: str, *, has_batches: bool) -> None:
        self._calls = calls
        self._number = number
        self._uuid = uuid
        self._exports_fds = self._has("VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED") and self._has(
            "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED"
        )
        # Where registered memory has another address on the device, a batch that is given the host's has been
        # seen to end the context; a single copy knows what it is given.
        self._has_batches = has_batches and self._has("CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM")
        self._fd_type = calls.api.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        [self._context] = calls("cuDevicePrimaryCtxRetain", number)

    @property
    def uuid(self) -> str:
        return self._uuid

    @property
    def exports_fds(self) -> bool:
        return self._exports_fds

    @property
    def copies_batches(self) -> bool:
        return self._has_batches

    @contextmanager
    def current(self) -> Iterator[None]:
        self._calls("cuCtxPushCurrent", self._context)
        try:
            yield
        finally:
            self._calls("cuCtxPopCurrent")

    def close(self) -> None:
        self._calls("cuDevicePrimaryCtxRelease", self._number)

    def memory_free_bytes(self) -> int:
        free, _ = self._calls("cuMemGetInfo")
        return int(free)

    def synchronize(self) -> None:
        self._calls("cuCtxSynchronize")

    # --- Virtual memory management.

    def granularity_bytes(self) -> int:
        minimum = self._calls.api.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        [size] = self._calls("cuMemGetAllocationGranularity", self._properties(), minimum)
        return int(size)

    def reserve(self, size: int) -> int:
        [address] = self._calls("cuMemAddressReserve", size, 0, 0, 0)
        return int(address)

    def free_range(self, address: int, size: int) -> None:
        self._calls("cuMemAddressFree", address, size)

    def create(self, size: int) -> int:
        [handle] = self._calls("cuMemCreate", size, self._properties(), 0)
        return int(handle)

    def release(self, handle: int) -> None:
        self._calls("cuMemRelease", handle)

    def map(self, address: int, size: int, handle: int) -> None:
        self._calls("cuMemMap", address, size, 0, handle, 0)

    def unmap(self, address: int, size: int) -> None:
        self._calls("cuMemUnmap", address, size)

    def allow(self, address: int, size: int) -> None:
        access = self._calls.api.CUmemAccessDesc()
        access.location = self._location()
        access.flags = self._calls.api.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        self._calls("cuMemSetAccess", address, size, [access], 1)

    def export_fd(self, handle: int) -> int:
        [fd] = self._calls("cuMemExportToShareableHandle", handle, self._fd_type, 0)
        return int(fd)

    def import_fd(self, fd: int) -> int:
        [handle] = self._calls("cuMemImportFromShareableHandle", fd, self._fd_type)
        return int(handle)

    # --- CUDA IPC.

    def allocate(self, size: int) -> int:
        [address] = self._calls("cuMemAlloc", size)
        return int(address)

    def free(self, address: int) -> None:
        self._calls("cuMemFree", address)

    def export_ipc(self, address: int) -> bytes:
        [handle] = self._calls("cuIpcGetMemHandle", address)
        return ctypes.string_at(handle.getPtr(), IPC_HANDLE_BYTES)

    def open_ipc(self, handle: bytes) -> int:
        given = self._calls.api.CUipcMemHandle()
        ctypes.memmove(given.getPtr(), handle.ljust(IPC_HANDLE_BYTES, b"\0"), IPC_HANDLE_BYTES)
        lazily = self._calls.api.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
        [address] = self._calls("cuIpcOpenMemHandle", given, int(lazily))
        return int(address)

    def close_ipc(self, address: int) -> None:
        self._calls("cuIpcCloseMemHandle", address)

    # --- Host memory.

    def pin(self, address: int, size: int) -> None:
        self._calls("cuMemHostRegister", address, size, self._calls.api.CU_MEMHOSTREGISTER_PORTABLE)

    def unpin(self, address: int) -> None:
        self._calls("cuMemHostUnregister", address)

    # --- Streams, events, copies.

    def make_stream(self) -> int:
        # It waits for nothing that others give to the default stream.
        flags = self._calls.api.CUstream_flags.CU_STREAM_NON_BLOCKING
        [stream] = self._calls("cuStreamCreate", int(flags))
        return int(stream)

    def destroy_stream(self, stream: int) -> None:
        self._calls("cuStreamDestroy", stream)

    def make_event(self) -> int:
        flags = self._calls.api.CUevent_flags.CU_EVENT_DISABLE_TIMING
        [event] = self._calls("cuEventCreate", int(flags))
        return int(event)

    def destroy_event(self, event: int) -> None:
        self._calls("cuEventDestroy", event)

    def record(self, event: int, stream: int) -> None:
        self._calls("cuEventRecord", event, stream)

    def is_done(self, event: int) -> bool:
        try:
            self._calls("cuEventQuery", event)
        except CudaFailed as error:
            if error.code == "CUDA_ERROR_NOT_READY":
                return False
            raise
        return True

    def copy(self, target: int, source: int, size: int, stream: int) -> None:
        self._calls("cuMemcpyAsync", target, source, size, stream)

    def copy_batch(
        self, targets: Sequence[int], sources: Sequence[int], sizes: Sequence[int], stream: int
    ) -> None:
        api = self._calls.api
        attributes = api.CUmemcpyAttributes()
        # In the order of the stream: with ANY a source may be read before earlier work has written it.
        attributes.srcAccessOrder = api.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
        to, from_ = [[api.CUdeviceptr(each) for each in side] for side in (targets, sources)]
        self._calls("cuMemcpyBatchAsync", to, from_, list(sizes), len(sizes), [attributes], [0], 1, stream)

    def _has(self, name: str) -> bool:
        attribute = getattr(self._calls.api.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        [has] = self._calls("cuDeviceGetAttribute", attribute, self._number)
        return bool(has)

    def _location(self) -> Any:
        location = self._calls.api.CUmemLocation()
        location.type = self._calls.api.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        location.id = int(self._number)
        return location

    def _properties(self) -> Any:
        """Of pages on this device that can be passed on as a descriptor."""
        properties = self._calls.api.CUmemAllocationProp()
        properties.type = self._calls.api.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location = self._location()
        properties.requestedHandleTypes = self._fd_type
        return properties
