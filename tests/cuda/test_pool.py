"""The pool on devices: sizes, want of memory in words, ranks, what is left behind. Cases 2.19, 5.15, 7.02."""

import os
import threading

import pytest

from kvstore.core.errors import PoolUnavailable
from kvstore.cuda.memory import DeviceMemory
from kvstore.tiers.cuda_pool import CudaPool
from kvstore.tiers.cuda_thread import CudaThread, DeviceLost
from tests.cuda.bench import BLOCK_BYTES, WAIT, cuda_bench
from tests.cuda.fake import GRANULARITY, FakeDriver, fake_uuid


def make(driver: FakeDriver, frames: int, *, ranks: int = 1) -> CudaPool:
    threads = [CudaThread(driver, fake_uuid(rank)) for rank in range(ranks)]
    try:
        return CudaPool("gpu", frames, BLOCK_BYTES, threads, option="--gpu")
    except BaseException:
        for thread in threads:
            thread.close(WAIT)
        raise


def end(pool: CudaPool) -> None:
    pool.close()
    for thread in pool.threads:
        thread.close(WAIT)


@pytest.mark.parametrize("exports_fds", [True, False])
def test_each_rank_has_its_memory_on_its_device_rounded_to_its_pages(exports_fds: bool) -> None:
    with cuda_bench(ranks=3, frames=33, exports_fds=exports_fds) as bench:
        pool = bench.gpu
        assert (pool.ranks, pool.stride_bytes, pool.frame_bytes) == (3, 8192, 3 * 8192)
        assert pool.devices == tuple(fake_uuid(rank) for rank in range(3))
        assert 33 * 8192 % GRANULARITY
        for rank, device in enumerate(bench.devices):
            assert device.memory.used_bytes == 5 * GRANULARITY
            assert device.memory.is_device("", pool.address(rank), 33 * 8192)
            for other in bench.devices:
                assert other is device or not other.memory.is_device("", pool.address(rank), 1)
        if exports_fds:
            assert pool.size_bytes == 3 * 5 * GRANULARITY
            assert [os.fstat(fd).st_size for fd in pool.fds if fd is not None] == [5 * GRANULARITY] * 3
            assert pool.ipc_handles == (b"",) * 3
        else:
            assert pool.fds == (None,) * 3
            assert all(pool.ipc_handles)


def test_case_7_02_what_torch_is_told_of_its_allocator_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    for exports_fds in (True, False):
        with cuda_bench(exports_fds=exports_fds) as bench:
            # Never both: a handle of IPC is asked for memory of the old way alone, which has one.
            assert (bench.gpu.fds[0] is None) == bool(bench.gpu.ipc_handles[0]) == (not exports_fds)


@pytest.mark.parametrize("exports_fds", [True, False])
def test_want_of_memory_names_what_was_asked_what_is_free_and_what_would_fit(exports_fds: bool) -> None:
    driver = FakeDriver(memory_bytes=16 * GRANULARITY, exports_fds=exports_fds)
    with pytest.raises(PoolUnavailable) as caught:
        make(driver, 17 * GRANULARITY // 8192)
    assert str(17 * GRANULARITY) in caught.value.message
    assert f"{16 * GRANULARITY} are free" in caught.value.message
    assert fake_uuid(0) in caught.value.message
    assert caught.value.field == "--gpu"
    assert f"at most {16 * GRANULARITY} bytes" in caught.value.remedy
    assert not driver[0].left_behind
    # What it says would fit does.
    end(make(driver, 16 * GRANULARITY // 8192))
    driver.close()


@pytest.mark.parametrize("call", ["create", "map", "reserve", "allow", "export_fd"])
def test_a_rank_that_can_not_be_made_leaves_none_of_the_others(call: str) -> None:
    driver = FakeDriver(devices=3)
    driver[2].fail(call, code="CUDA_ERROR_OUT_OF_MEMORY")
    with pytest.raises(PoolUnavailable, match=fake_uuid(2)):
        make(driver, 32, ranks=3)
    assert [driver[rank].left_behind for rank in range(3)] == [{}] * 3
    driver.close()


def test_case_2_19_memory_lives_until_the_last_who_maps_it_has_gone() -> None:
    """The service closes its pool: whoever maps it reads on, and it is free again after that."""
    driver, engine = FakeDriver(), FakeDriver()
    pool = make(driver, 32)
    [fd] = pool.fds
    assert fd is not None
    device = engine.open(fake_uuid(0))
    with device.current():
        mapped = DeviceMemory.import_fd(device, fd, pool.size_bytes)
        end(pool)
        assert not driver[0].left_behind
        assert device.memory.is_device("", mapped.address, mapped.size_bytes)
        mapped.close()
    device.close()
    assert not engine[0].left_behind
    for each in (driver, engine):
        each.close()


def test_case_5_15_a_thousand_attachments_leave_one_range_a_pool() -> None:
    driver, engine = FakeDriver(stepped=True), FakeDriver(stepped=True)
    pool = make(driver, 32)
    [fd] = pool.fds
    assert fd is not None
    descriptors = len(os.listdir("/proc/self/fd"))
    device = engine.open(fake_uuid(0))
    with device.current():
        for _ in range(1000):
            mapped = DeviceMemory.import_fd(device, fd, pool.size_bytes)
            [found] = device.memory.ranges.values()
            assert found.size == pool.size_bytes
            assert not device.memory.handles
            mapped.close()
    device.close()
    assert not engine[0].left_behind
    assert len(os.listdir("/proc/self/fd")) == descriptors
    end(pool)


def test_a_close_that_hangs_in_the_driver_has_a_deadline_and_is_done_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kvstore.tiers.cuda_pool.CLOSE_SECONDS", 0.05)
    driver = FakeDriver()
    pool = make(driver, 32)
    [fd] = pool.fds
    assert fd is not None
    release = threading.Event()

    def hang() -> None:
        release.wait(WAIT)

    driver[0].during["memory_free_bytes"] = hang
    hung = threading.Thread(target=lambda: pool.threads[0].call(lambda device: device.memory_free_bytes()))
    hung.start()
    pool.close()
    # Another file may have its number by now: it is closed once, with the memory.
    assert os.fstat(fd)
    release.set()
    hung.join()
    end(pool)
    assert not driver[0].left_behind
    driver.close()


def test_a_pool_of_a_lost_device_can_be_closed_and_says_why() -> None:
    driver = FakeDriver()
    pool = make(driver, 32)
    [fd] = pool.fds
    assert fd is not None
    driver[0].lose()
    with pytest.raises(DeviceLost):
        pool.threads[0].call(lambda device: device.memory_free_bytes())
    assert pool.error is not None
    end(pool)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    driver.close()
