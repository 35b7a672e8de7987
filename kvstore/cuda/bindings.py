"""The CUDA driver itself, through NVIDIA's `cuda-bindings` (the extra `cuda`).

Neither the package nor libcuda is looked for before `load_driver` is called: without a GPU kvstore needs
neither. cuda-bindings lets go of Python's lock around each call. The primary context of a device is used, the
one that torch and the CUDA runtime have in the same process.

It speaks CUDA 13: of `cuMemcpyBatchAsync` there are two forms, and only the newer one is known here.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any
from uuid import UUID

from kvstore.cuda.calls import Calls
from kvstore.cuda.device import CudaDevice
from kvstore.cuda.driver import CudaFailed, CudaUnavailable, DeviceFound, Driver

__all__ = ["load_driver"]

# From this version on, as the driver tells it, copies go in batches.
BATCHES_SINCE = 13_000
NAME_BYTES = 128


def load_driver() -> Driver:
    """Raises CudaUnavailable, which says what is missing."""
    try:
        api = import_module("cuda.bindings.driver")
    except ImportError as error:
        raise CudaUnavailable(
            f"a GPU needs the package cuda-bindings: pip install 'kvstore[cuda]' ({error})"
        ) from error
    calls = Calls(api)
    try:
        calls("cuInit", 0)
        [version] = calls("cuDriverGetVersion")
    except CudaFailed as error:
        if error.__cause__ is None:
            raise CudaUnavailable(f"the CUDA driver does not start: {error}") from error
        # Of cuda-bindings, where it finds no libcuda or one that is too old.
        raise CudaUnavailable(f"no CUDA driver (libcuda.so.1) on this machine: {error.__cause__}") from error
    return _CudaDriver(calls, int(version))


class _CudaDriver:
    def __init__(self, calls: Calls, version: int) -> None:
        self._calls = calls
        self._version = version

    def devices(self) -> Sequence[DeviceFound]:
        found = [self._found(number) for number in self._numbers()]
        if not found:
            raise CudaUnavailable("the CUDA driver sees no device")
        return found

    def open(self, uuid: str) -> "CudaDevice":
        for number in self._numbers():
            if self._uuid(number) == uuid:
                return CudaDevice(self._calls, number, uuid, has_batches=self._version >= BATCHES_SINCE)
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
