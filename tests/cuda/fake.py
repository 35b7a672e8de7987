"""A CUDA driver in host memory: devices whose streams really run late and out of order, and that fail when
told to.
"""

from collections.abc import Sequence
from uuid import UUID

from kvstore.cuda.driver import CudaUnavailable, DeviceFound
from tests.cuda.fake_device import FakeDevice
from tests.cuda.fake_memory import FakeMemory
from tests.cuda.fake_streams import FakeStreams

__all__ = ["GRANULARITY", "FakeDriver", "fake_uuid"]

GRANULARITY = 1 << 16


def fake_uuid(index: int) -> str:
    return f"GPU-{UUID(int=0xFACE0000 + index)}"


class FakeDriver:
    def __init__(
        self,
        seed: int = 0,
        *,
        devices: int = 1,
        memory_bytes: int = 64 << 20,
        exports_fds: bool = True,
        copies_batches: bool = True,
        stepped: bool = False,
    ) -> None:
        self.by_uuid = {
            fake_uuid(index): FakeDevice(
                fake_uuid(index),
                FakeMemory(memory_bytes, GRANULARITY),
                FakeStreams(seed * 16 + index, stepped=stepped),
                exports_fds=exports_fds,
                copies_batches=copies_batches,
            )
            for index in range(devices)
        }

    def devices(self) -> Sequence[DeviceFound]:
        if not self.by_uuid:
            raise CudaUnavailable("the CUDA driver sees no device")
        return [
            DeviceFound(uuid=uuid, name="Fake", memory_bytes=device.memory.size_bytes)
            for uuid, device in self.by_uuid.items()
        ]

    def open(self, uuid: str) -> FakeDevice:
        if uuid not in self.by_uuid:
            raise CudaUnavailable(f"the CUDA driver sees no device {uuid}")
        device = self.by_uuid[uuid]
        device.open()
        return device

    def __getitem__(self, index: int) -> FakeDevice:
        return self.by_uuid[fake_uuid(index)]

    def close(self) -> None:
        for device in self.by_uuid.values():
            device.streams.close()
