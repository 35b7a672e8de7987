"""The one thread of a device: who calls, what waits, how it ends. Cases 3.15, 3.16, 3.19."""

import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from kvstore.cuda.driver import CudaFailed, CudaUnavailable, Device
from kvstore.cuda.memory import DeviceMemory
from kvstore.tiers.cuda_streams import Copies
from kvstore.tiers.cuda_thread import CudaThread, DeviceLost, Direction
from tests.cuda.bench import WAIT, cuda_bench
from tests.cuda.fake import FakeDriver, fake_uuid
from tests.cuda.fake_device import FakeDevice


@pytest.fixture
def driver() -> Iterator[FakeDriver]:
    driver = FakeDriver(1)
    yield driver
    driver.close()


@pytest.fixture
def thread(driver: FakeDriver) -> Iterator[CudaThread]:
    thread = CudaThread(driver, fake_uuid(0))
    yield thread
    driver[0].streams.resume()
    assert thread.close(WAIT)


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.001)


def make_memory(thread: CudaThread, size: int = 1 << 16) -> DeviceMemory:
    return thread.call(lambda device: DeviceMemory.make(device, size))


def copies(memory: DeviceMemory, size: int = 1000) -> Copies:
    return Copies(targets=[memory.address + (1 << 15)], sources=[memory.address], sizes=[size])


def test_case_3_15_all_calls_of_a_device_come_from_one_thread_and_calls_get_on() -> None:
    """Sixteen threads that ask, copies both ways, pinning in between; the fake refuses two at once."""
    with cuda_bench(4) as bench:
        [thread], [device] = bench.threads, bench.devices
        stop, failed = threading.Event(), []
        left = [50]

        def step(device: Device) -> bool:
            device.pin(bench.cpu.address(0), 4096)
            device.unpin(bench.cpu.address(0))
            left[0] -= 1
            return left[0] > 0

        def ask(number: int) -> None:
            try:
                host = bench.cpu.address(0) + (number + 1) * bench.cpu.stride_bytes
                place = bench.gpu.address(0) + number * bench.gpu.stride_bytes
                while not stop.is_set():
                    assert thread.call(lambda device: device.memory_free_bytes()) > 0
                    down = Copies(targets=[host], sources=[place], sizes=[4096])
                    up = Copies(targets=[place], sources=[host], sizes=[4096])
                    for direction, each in zip(Direction, (down, up), strict=True):
                        assert thread.copy(direction, each).result(WAIT) >= 0
            except BaseException as error:
                failed.append(error)

        askers = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
        thread.add_step(step)
        for asker in askers:
            asker.start()
        until(lambda: not left[0])
        stop.set()
        for asker in askers:
            asker.join(WAIT)
        assert not failed
        assert device.threads == {thread.call(lambda _: threading.get_ident())}
        # Nothing is destroyed while it is at work.
        assert not device.calls["destroy_event"]


def test_an_idle_thread_asks_the_driver_nothing(thread: CudaThread, driver: FakeDriver) -> None:
    memory = make_memory(thread)
    thread.copy(Direction.TO_HOST, copies(memory)).result(WAIT)
    before = driver[0].calls.copy()
    time.sleep(0.05)
    assert driver[0].calls == before
    thread.call(lambda _: memory.close())


def test_a_stalled_stream_is_waited_for_and_told_and_keeps_nobody_else(
    thread: CudaThread, driver: FakeDriver
) -> None:
    memory = make_memory(thread)
    first = thread.copy(Direction.TO_HOST, copies(memory))
    first.result(WAIT)
    assert thread.stalled_seconds == 0
    to_host = min(driver[0].streams.by_number)
    driver[0].streams.stall(to_host)
    stalled = thread.copy(Direction.TO_HOST, copies(memory))
    until(lambda: thread.stalled_seconds > 0.05)
    # The other direction, and calls, go on.
    thread.copy(Direction.TO_DEVICE, copies(memory)).result(WAIT)
    assert thread.call(lambda device: device.memory_free_bytes()) > 0
    assert not stalled.done()
    driver[0].streams.resume()
    assert stalled.result(WAIT) > 0.05
    assert thread.stalled_seconds == 0
    thread.call(lambda _: memory.close())


def test_case_3_16_a_close_has_a_deadline(driver: FakeDriver) -> None:
    thread = CudaThread(driver, fake_uuid(0))
    memory = make_memory(thread)
    driver[0].streams.stall()
    stalled = thread.copy(Direction.TO_HOST, copies(memory))
    assert not thread.close(0.05)
    # Closed to others already.
    with pytest.raises(DeviceLost, match="is closed"):
        thread.call(lambda device: device.memory_free_bytes())
    driver[0].streams.resume()
    stalled.result(WAIT)
    assert thread.close(WAIT)


def test_case_3_16_a_call_that_hangs_keeps_nobody_beyond_a_deadline(
    thread: CudaThread, driver: FakeDriver
) -> None:
    release = threading.Event()

    def hang() -> None:
        release.wait(WAIT)

    driver[0].during["memory_free_bytes"] = hang
    with pytest.raises(TimeoutError):
        thread.call(lambda device: device.memory_free_bytes(), timeout=0.02)
    release.set()
    assert thread.call(lambda _: 7, timeout=WAIT) == 7


def test_a_refused_call_is_told_to_its_caller_alone(thread: CudaThread, driver: FakeDriver) -> None:
    driver[0].fail("reserve", code="CUDA_ERROR_OUT_OF_MEMORY")
    with pytest.raises(CudaFailed) as caught:
        make_memory(thread)
    assert caught.value.is_out_of_memory
    assert thread.error is None
    memory = make_memory(thread)
    driver[0].fail("copy_batch")
    with pytest.raises(CudaFailed):
        thread.copy(Direction.TO_DEVICE, copies(memory)).result(WAIT)
    assert thread.copy(Direction.TO_DEVICE, copies(memory)).result(WAIT) >= 0
    thread.call(lambda _: memory.close())


def lose_while_idle(thread: CudaThread, device: FakeDevice) -> None:
    device.lose()
    with pytest.raises(DeviceLost):
        thread.call(lambda device: device.memory_free_bytes())


def lose_while_copying(thread: CudaThread, device: FakeDevice) -> None:
    memory = make_memory(thread)
    device.streams.stall()
    under_way = [thread.copy(direction, copies(memory)) for direction in Direction for _ in range(3)]
    device.lose()
    for each in under_way:
        with pytest.raises(DeviceLost, match="ILLEGAL_ADDRESS"):
            each.result(WAIT)


def lose_in_the_background(thread: CudaThread, device: FakeDevice) -> None:
    device.lose()
    thread.add_step(lambda device: device.memory_free_bytes() > 0)
    until(lambda: thread.error is not None)


@pytest.mark.parametrize("lose", [lose_while_idle, lose_while_copying, lose_in_the_background])
def test_a_lost_device_ends_all_and_says_why(
    driver: FakeDriver, lose: Callable[[CudaThread, FakeDevice], None]
) -> None:
    thread = CudaThread(driver, fake_uuid(0))
    lose(thread, driver[0])
    until(lambda: thread.error is not None)
    with pytest.raises(DeviceLost, match=f"{fake_uuid(0)} is lost: .*ILLEGAL_ADDRESS"):
        thread.call(lambda device: device.memory_free_bytes())
    memory = DeviceMemory(1 << 20, 1 << 16, None, b"", None)  # type: ignore[arg-type]  # Only an address.
    with pytest.raises(DeviceLost):
        thread.copy(Direction.TO_HOST, copies(memory)).result(WAIT)
    assert thread.close(WAIT)


def test_a_device_that_is_not_there_or_does_not_open_is_told_at_once(driver: FakeDriver) -> None:
    with pytest.raises(CudaUnavailable):
        CudaThread(driver, fake_uuid(9))
    driver[0].fail("make_stream", code="CUDA_ERROR_OUT_OF_MEMORY")
    with pytest.raises(CudaFailed):
        CudaThread(driver, fake_uuid(0))
    assert "contexts" not in driver[0].left_behind


def test_the_background_waits_for_nobody_and_keeps_nobody_long(thread: CudaThread) -> None:
    """A step at a time, and after each others have their turn for longer than it took."""
    begins: list[float] = []

    def step(device: Device) -> bool:
        begins.append(time.monotonic())
        time.sleep(0.02)
        return len(begins) < 4

    thread.add_step(step)
    until(lambda: len(begins) == 4)
    gaps = [after - before for before, after in pairwise(begins)]
    assert min(gaps) >= 0.02 * 4 * 0.9
    assert thread.call(lambda _: 1) == 1
