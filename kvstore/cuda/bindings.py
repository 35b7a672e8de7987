"""The CUDA driver itself, through NVIDIA's `cuda-bindings` (the extra `cuda`).

Neither the package nor libcuda is looked for before `load_driver` is called: without a GPU kvstore needs
neither. Each method is one call of the driver; cuda-bindings lets go of Python's lock around it. The primary
context of the device is used, the one that torch and the CUDA runtime have in the same process.

It speaks CUDA 13: of `cuMemcpyBatchAsync` there are two forms, and only the newer one is known here.
"""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from uuid import UUID

from kvstore.cuda.driver import CudaFailed, CudaUnavailable, DeviceFound, Driver

__all__ = ["load_driver"]

# From this version on, as the driver tells it, copies go in batches.
BATCHES_SINCE = 13_000
IPC_HANDLE_BYTES = 64
NAME_BYTES = 128
# After these nothing on the device works any more for this process, so say the driver's documents.
LOST = frozenset(
    f"CUDA_ERROR_{name}"
    for name in (
        "ASSERT",
        "CONTAINED",
        "CONTEXT_IS_DESTROYED",
        "DEINITIALIZED",
        "DEVICE_UNAVAILABLE",
        "ECC_UNCORRECTABLE",
        "EXTERNAL_DEVICE",
        "HARDWARE_STACK_ERROR",
        "ILLEGAL_ADDRESS",
        "ILLEGAL_INSTRUCTION",
        "INVALID_ADDRESS_SPACE",
        "INVALID_PC",
        "LAUNCH_FAILED",
        "LAUNCH_TIMEOUT",
        "MISALIGNED_ADDRESS",
        "MPS_CLIENT_TERMINATED",
        "MPS_RPC_FAILURE",
        "NVLINK_UNCORRECTABLE",
        "TENSOR_MEMORY_LEAK",
        "UNKNOWN",
    )
)


def load_driver() -> Driver:
    """Raises CudaUnavailable, which says what is missing."""
    try:
        api = import_module("cuda.bindings.driver")
    except ImportError as error:
        raise CudaUnavailable(
            f"a GPU needs the package cuda-bindings: pip install 'kvstore[cuda]' ({error})"
        ) from error
    calls = _Calls(api)
    try:
        calls("cuInit", 0)
        [version] = calls("cuDriverGetVersion")
    except CudaFailed as error:
        raise CudaUnavailable(f"the CUDA driver does not start: {error}") from error
    except Exception as error:  # Of cuda-bindings, where it finds no libcuda or one that is too old.
        raise CudaUnavailable(f"no CUDA driver (libcuda.so.1) on this machine: {error}") from error
    return _CudaDriver(calls, int(version))


class _Calls:
    """A call of the driver by its name: what it gives, or CudaFailed."""

    def __init__(self, api: Any) -> None:
        self.api = api

    def __call__(self, name: str, *arguments: object) -> list[Any]:
        given: list[Any]
        code, *given = getattr(self.api, name)(*arguments)
        if code != self.api.CUresult.CUDA_SUCCESS:
            raise CudaFailed(name, code.name, is_lost=code.name in LOST)
        return given


class _CudaDriver:
    def __init__(self, calls: _Calls, version: int) -> None:
        self._calls = calls
        self._version = version

    def devices(self) -> Sequence[DeviceFound]:
        found = [self._found(number) for number in self._numbers()]
        if not found:
            raise CudaUnavailable("the CUDA driver sees no device")
        return found

    def open(self, uuid: str) -> "_CudaDevice":
        for number in self._numbers():
            if self._uuid(number) == uuid:
                return _CudaDevice(self._calls, number, uuid, has_batches=self._version >= BATCHES_SINCE)
        raise CudaUnavailable(f"the CUDA driver sees no device {uuid}")

    def _numbers(self) -> list[Any]:
        [count] = self._calls("cuDeviceGetCount")
        return [self._calls("cuDeviceGet", number)[0] for number in range(count)]

    def _uuid(self, number: Any) -> str:
        [uuid] = self._calls("cuDeviceGetUuid", number)
        return f"GPU-{UUID(bytes=bytes(uuid.bytes))}"

    def _found(self, number: Any) -> DeviceFound:
        [name] = self._calls("cuDeviceGetName", NAME_BYTES, number)
        [size] = self._calls("cuDeviceTotalMem", number)
        return DeviceFound(
            uuid=self._uuid(number), name=name.rstrip(b"\0").decode(errors="replace"), memory_bytes=size
        )


class _CudaDevice:
    def __init__(self, calls: _Calls, number: Any, uuid: str, *, has_batches: bool) -> None:
        self._calls = calls
        self._number = number
        self._uuid = uuid
        api = calls.api
        attributes = api.CUdevice_attribute
        self._exports_fds = all(
            calls("cuDeviceGetAttribute", attribute, number)[0]
            for attribute in (
                attributes.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                attributes.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
            )
        )
        self._has_batches = has_batches
        self._fd_type = api.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
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
