"""What any driver must do for kvstore: run on the fake, on the real one where there is a device."""

import os
import time
from collections.abc import Iterator

import numpy as np
import pytest

from kvstore.cuda.driver import CudaFailed, CudaUnavailable, Device, Driver
from kvstore.cuda.memory import DeviceMemory
from kvstore.tiers.memory import MemoryFile

SIZE = 300_000
WAIT_SECONDS = 60.0


def wait_done(device: Device, event: int) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not device.is_done(event):
        assert time.monotonic() < end
        time.sleep(0.0002)


class DriverConformance:
    @pytest.fixture
    def driver(self) -> Driver:
        raise NotImplementedError

    @pytest.fixture
    def device(self, driver: Driver) -> Iterator[Device]:
        """The first there is, with its context on this thread."""
        device = driver.open(driver.devices()[0].uuid)
        with device.current():
            yield device
        device.close()

    @pytest.fixture
    def host(self) -> Iterator[np.ndarray]:
        """As pools are made: a memory file."""
        file = MemoryFile("test", 4 * SIZE // 4096 * 4096)
        try:
            yield file.map()
        finally:
            file.close()

    def test_devices_have_names_that_open_them(self, driver: Driver) -> None:
        for found in driver.devices():
            assert found.uuid.startswith("GPU-")
            assert found.memory_bytes > 0
            assert found.name
            device = driver.open(found.uuid)
            assert device.uuid == found.uuid
            device.close()
        with pytest.raises(CudaUnavailable, match="GPU-00000000"):
            driver.open("GPU-00000000-0000-0000-0000-000000000000")

    def test_what_is_copied_to_a_device_comes_back(self, device: Device, host: np.ndarray) -> None:
        address = host.ctypes.data
        host[:SIZE] = np.random.default_rng(1).integers(0, 256, SIZE, np.uint8)
        stream, event = device.make_stream(), device.make_event()
        memory = DeviceMemory.make(device, SIZE)
        try:
            device.copy(memory.address, address, SIZE, stream)
            device.copy(address + SIZE, memory.address, SIZE, stream)
            device.record(event, stream)
            wait_done(device, event)
            assert np.array_equal(host[:SIZE], host[SIZE : 2 * SIZE])
        finally:
            device.destroy_event(event)
            device.destroy_stream(stream)
            memory.close()

    def test_a_batch_copies_all_its_parts_and_pinned_memory_as_well(
        self, device: Device, host: np.ndarray
    ) -> None:
        if not device.copies_batches:
            pytest.skip("the driver has no batches")
        address, part = host.ctypes.data, 4096
        host[: 8 * part] = np.random.default_rng(2).integers(0, 256, 8 * part, np.uint8)
        stream, event = device.make_stream(), device.make_event()
        memory = DeviceMemory.make(device, SIZE)
        device.pin(address, 16 * part)
        try:
            order = [5, 0, 3, 7, 1, 2, 6, 4]
            device.copy_batch(
                [memory.address + place * part for place in range(8)],
                [address + number * part for number in order],
                [part] * 8,
                stream,
            )
            device.copy(address + 8 * part, memory.address, 8 * part, stream)
            device.record(event, stream)
            wait_done(device, event)
            rows = host[: 16 * part].reshape(16, part)
            assert np.array_equal(rows[8:], rows[order])
        finally:
            device.unpin(address)
            device.destroy_event(event)
            device.destroy_stream(stream)
            memory.close()

    def test_memory_is_rounded_and_goes_when_it_is_closed(self, device: Device) -> None:
        granularity = device.granularity_bytes()
        memory = DeviceMemory.make(device, 1)
        assert memory.size_bytes == (granularity if device.exports_fds else 1)
        assert memory.address
        fd = memory.fd
        assert (fd is not None) == device.exports_fds
        assert fd is None or not os.get_inheritable(fd)
        memory.close()
        if fd is not None:
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(fd)

    def test_an_imported_descriptor_is_the_same_memory(self, device: Device, host: np.ndarray) -> None:
        if not device.exports_fds:
            pytest.skip("no descriptors")
        address = host.ctypes.data
        host[:SIZE] = np.random.default_rng(3).integers(0, 256, SIZE, np.uint8)
        stream, event = device.make_stream(), device.make_event()
        memory = DeviceMemory.make(device, SIZE)
        assert memory.fd is not None
        imported = DeviceMemory.import_fd(device, memory.fd, memory.size_bytes)
        try:
            assert imported.address != memory.address
            device.copy(memory.address, address, SIZE, stream)
            device.copy(address + SIZE, imported.address, SIZE, stream)
            device.record(event, stream)
            wait_done(device, event)
            assert np.array_equal(host[:SIZE], host[SIZE : 2 * SIZE])
        finally:
            imported.close()
            memory.close()
            device.destroy_event(event)
            device.destroy_stream(stream)

    def test_memory_lives_as_long_as_somebody_maps_it(self, device: Device, host: np.ndarray) -> None:
        if not device.exports_fds:
            pytest.skip("no descriptors")
        stream, event = device.make_stream(), device.make_event()
        memory = DeviceMemory.make(device, SIZE)
        assert memory.fd is not None
        imported = DeviceMemory.import_fd(device, memory.fd, memory.size_bytes)
        memory.close()
        try:
            host[:SIZE] = 7
            device.copy(imported.address, host.ctypes.data, SIZE, stream)
            device.copy(host.ctypes.data + SIZE, imported.address, SIZE, stream)
            device.record(event, stream)
            wait_done(device, event)
            assert (host[SIZE : 2 * SIZE] == 7).all()
        finally:
            imported.close()
            device.destroy_event(event)
            device.destroy_stream(stream)

    def test_want_of_memory_is_told_as_such_and_leaves_nothing(self, driver: Driver, device: Device) -> None:
        total = driver.devices()[0].memory_bytes
        free = device.memory_free_bytes()
        assert 0 < free <= total
        with pytest.raises(CudaFailed) as caught:
            DeviceMemory.make(device, 2 * total)
        assert caught.value.is_out_of_memory
        assert not caught.value.is_lost
        # And it can go on.
        DeviceMemory.make(device, SIZE).close()

    def test_what_is_pinned_twice_is_refused_and_the_next_is_not(
        self, device: Device, host: np.ndarray
    ) -> None:
        address = host.ctypes.data
        device.pin(address, 8192)
        with pytest.raises(CudaFailed) as caught:
            device.pin(address, 8192)
        assert caught.value.code == "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"
        device.pin(address + 8192, 8192)
        device.unpin(address)
        device.unpin(address + 8192)
        with pytest.raises(CudaFailed):
            device.unpin(address)

    def test_an_event_is_done_when_nothing_was_given_to_its_stream(self, device: Device) -> None:
        stream, event = device.make_stream(), device.make_event()
        device.record(event, stream)
        wait_done(device, event)
        device.destroy_event(event)
        device.destroy_stream(stream)

    def test_who_synchronizes_has_all_work_behind_it(self, device: Device, host: np.ndarray) -> None:
        stream = device.make_stream()
        memory = DeviceMemory.make(device, SIZE)
        host[:SIZE] = 9
        device.copy(memory.address, host.ctypes.data, SIZE, stream)
        device.copy(host.ctypes.data + SIZE, memory.address, SIZE, stream)
        device.synchronize()
        assert (host[SIZE : 2 * SIZE] == 9).all()
        device.destroy_stream(stream)
        memory.close()

    def test_memory_the_old_way(self, device: Device) -> None:
        address = device.allocate(SIZE)
        assert device.export_ipc(address)
        device.free(address)
