"""The fake and the real driver keep the same promises."""

from collections.abc import Iterator

import pytest

from kvstore.cuda.bindings import load_driver
from kvstore.cuda.driver import CudaFailed, CudaUnavailable, Driver
from kvstore.cuda.memory import DeviceMemory
from tests.cuda.conformance import SIZE, DriverConformance
from tests.cuda.fake import FakeDriver


class TestFake(DriverConformance):
    @pytest.fixture(params=range(3))
    def driver(self, request: pytest.FixtureRequest) -> Iterator[FakeDriver]:
        driver = FakeDriver(request.param)
        yield driver
        driver.close()
        assert not driver[0].left_behind


class TestFakeOfTheOldWay(DriverConformance):
    @pytest.fixture
    def driver(self) -> Iterator[FakeDriver]:
        driver = FakeDriver(exports_fds=False, copies_batches=False)
        yield driver
        driver.close()
        assert not driver[0].left_behind


@pytest.mark.gpu
class TestReal(DriverConformance):
    """Also run on a libcuda of the tests' own, see `test_bindings.py`."""

    @pytest.fixture
    def driver(self) -> Driver:
        try:
            driver = load_driver()
            driver.devices()
        except CudaUnavailable as error:
            pytest.skip(str(error))
        return driver


@pytest.mark.parametrize("call", ["granularity_bytes", "create", "reserve", "map", "allow", "export_fd"])
def test_memory_that_fails_half_way_leaves_nothing_behind(call: str) -> None:
    driver = FakeDriver(stepped=True)
    device = driver.open(driver.devices()[0].uuid)
    device.fail(call)
    with device.current():
        with pytest.raises(CudaFailed, match=call):
            DeviceMemory.make(device, SIZE)
        device.close()
    assert not device.left_behind


@pytest.mark.parametrize("call", ["import_fd", "reserve", "map", "allow"])
def test_an_import_that_fails_half_way_leaves_nothing_behind(call: str) -> None:
    driver = FakeDriver(stepped=True)
    device = driver.open(driver.devices()[0].uuid)
    with device.current():
        made = DeviceMemory.make(device, SIZE)
        before = device.left_behind
        device.fail(call)
        assert made.fd is not None
        with pytest.raises(CudaFailed, match=call):
            DeviceMemory.import_fd(device, made.fd, made.size_bytes)
        assert device.left_behind == before
        made.close()
        device.close()
    assert not device.left_behind


def test_a_copy_is_not_over_before_its_event_is() -> None:
    """The fake is late: else it would prove nothing."""
    driver = FakeDriver(stepped=True)
    device = driver.open(driver.devices()[0].uuid)
    with device.current():
        memory = DeviceMemory.make(device, SIZE)
        other = DeviceMemory.make(device, SIZE)
        stream, event = device.make_stream(), device.make_event()
        device.copy(other.address, memory.address, SIZE, stream)
        device.record(event, stream)
        while not device.is_done(event):
            assert device.streams.step()
        assert device.streams.steps_run > 1
        assert not device.streams.step()
        device.destroy_event(event)
        device.destroy_stream(stream)
        memory.close()
        other.close()
        device.close()
    assert not device.left_behind
