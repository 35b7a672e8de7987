"""One stream, by hand: what is told when."""

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass

import pytest

from kvstore.cuda.driver import CudaFailed
from kvstore.cuda.memory import DeviceMemory
from kvstore.tiers.cuda_streams import Copies, CopyStream
from tests.cuda.fake import FakeDriver
from tests.cuda.fake_device import FakeDevice

SIZE = 1 << 16


@dataclass
class Bench:
    device: FakeDevice
    stream: CopyStream
    memory: DeviceMemory
    time: float = 0.0

    def submit(self, parts: int = 4) -> Future[float]:
        ended: Future[float] = Future()
        part = SIZE // 8
        base = self.memory.address
        places = [base + number * part for number in range(parts)]
        copies = Copies(targets=[place + SIZE // 2 for place in places], sources=places, sizes=[part] * parts)
        self.stream.submit(copies, ended)
        return ended

    def run(self) -> None:
        self.device.streams.run_all()


@pytest.fixture(params=[True, False], ids=["batches", "one by one"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    driver = FakeDriver(3, stepped=True, copies_batches=request.param)
    device = driver.open(driver.devices()[0].uuid)
    with device.current():
        memory = DeviceMemory.make(device, SIZE)
        made = Bench(device, None, memory)  # type: ignore[arg-type]  # Made next: it needs its clock.
        made.stream = CopyStream(device, lambda: made.time)
        yield made
        if not device.is_lost:
            made.stream.close()
            memory.close()
            device.close()
            assert not device.left_behind


def copy_call(bench: Bench) -> str:
    return "copy_batch" if bench.device.copies_batches else "copy"


def test_a_copy_ends_with_its_last_byte_and_not_before(bench: Bench) -> None:
    ended = bench.submit()
    while bench.device.streams.step():
        assert not ended.done()
    # What is done is seen when it is looked for.
    bench.time = 2.0
    assert bench.stream.poll()
    assert ended.result(0) == 2.0
    assert bench.stream.is_idle


def test_a_copy_is_given_the_time_that_it_had_the_stream(bench: Bench) -> None:
    """Those that are seen to have ended together share it, by bytes: the bandwidth is learnt of it."""
    first, second = bench.submit(parts=1), bench.submit(parts=3)
    bench.run()
    bench.time = 4.0
    bench.stream.poll()
    assert (first.result(0), second.result(0)) == (1.0, 3.0)
    third = bench.submit()
    bench.time = 8.0
    assert bench.stream.waiting_seconds() == 4.0
    bench.run()
    bench.stream.poll()
    assert third.result(0) == 4.0


def test_a_failed_call_is_told_when_what_was_under_way_is_over(bench: Bench) -> None:
    bench.device.fail(copy_call(bench), after=0 if bench.device.copies_batches else 2)
    failed, good = bench.submit(), bench.submit()
    assert bench.device.streams.by_number, "something of it is under way"
    for _ in range(3):
        bench.stream.poll()
        assert not failed.done()
        assert bench.device.streams.step()
    bench.run()
    bench.stream.poll()
    assert isinstance(failed.exception(0), CudaFailed)
    assert good.result(0) == 0.0


def test_where_no_event_can_be_had_it_is_tried_again(bench: Bench) -> None:
    bench.device.fail("make_event", code="CUDA_ERROR_OUT_OF_MEMORY")
    ended = bench.submit()
    bench.run()
    bench.device.fail("record", code="CUDA_ERROR_OUT_OF_MEMORY")
    bench.device.fail("record", after=1, code="CUDA_ERROR_OUT_OF_MEMORY")
    for _ in range(2):
        assert not bench.stream.poll()
        bench.run()
        assert not ended.done()
    # The third time it stands there; it is done when the stream has come to it.
    assert not bench.stream.poll()
    bench.run()
    assert bench.stream.poll()
    assert ended.result(0) == 0.0


def test_events_are_used_again(bench: Bench) -> None:
    for _ in range(50):
        ended = [bench.submit(), bench.submit()]
        bench.run()
        bench.stream.poll()
        assert all(each.done() for each in ended)
    assert bench.device.calls["make_event"] == 2
    assert not bench.device.calls["destroy_event"]


def test_a_lost_device_is_raised_and_nothing_is_left_waiting(bench: Bench) -> None:
    before = bench.submit()
    bench.device.lose()
    with pytest.raises(CudaFailed) as caught:
        bench.submit()
    assert caught.value.is_lost
    with pytest.raises(CudaFailed):
        bench.stream.poll()
    bench.stream.give_up(caught.value)
    assert before.exception(0) is caught.value
    assert bench.stream.is_idle


def test_what_has_ended_is_told_though_the_next_can_not_be_asked_for(bench: Bench) -> None:
    good, unknown = bench.submit(), bench.submit()
    bench.run()
    bench.device.fail("is_done", after=1, code="CUDA_ERROR_INVALID_HANDLE")
    with pytest.raises(CudaFailed):
        bench.stream.poll()
    assert good.result(0) == 0.0
    assert not unknown.done()
    bench.stream.poll()
    assert unknown.result(0) == 0.0
