"""Every call that the service makes of the driver in a life, from the first to the last, failing once.

By each kind of error: a call that is refused, want of memory, a device that is lost by it. Whatever fails,
all ends, once, and in words; what ended well holds what it should; and what is left behind is at most what
the driver would not take back.
"""

import gc
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from kvstore.core.errors import ConfigInvalid, PoolUnavailable
from kvstore.core.types import COPY, LOAD, Link
from kvstore.server.gpus import Gpus, open_gpus
from kvstore.tiers.cuda_pool import CudaPool
from kvstore.tiers.cuda_thread import DeviceLost
from kvstore.tiers.movers import Movers
from kvstore.tiers.pinning import Pinning
from kvstore.tiers.pool import HostPool
from tests.cuda.bench import BLOCK_BYTES, WAIT, CudaBench, Ends, transfer
from tests.cuda.fake import FakeDriver, fake_uuid
from tests.cuda.fake_device import FakeDevice

RANKS, FRAMES, STRIDE = 2, 8, 8192
REFUSED, SHORT, LOST = (
    f"CUDA_ERROR_{name}" for name in ("INVALID_VALUE", "OUT_OF_MEMORY", "ILLEGAL_ADDRESS")
)
# Up, the other way round, and so that neighbours are one copy and others aren't.
DOWN = ((1, 2, 5), (3, 4, 0))
# How often events are asked for is left to the threads; the first times are enough.
ASKED_MOST = 2
# What is kept by a call that fails to give it back, and what can't be given back without.
KEPT = {
    "synchronize": set(),
    "unmap": {"ranges", "bytes"},
    "free_range": {"ranges"},
    "release": {"handles", "bytes"},
    "free": {"ranges", "bytes"},
    "unpin": {"pinned"},
    "destroy_event": {"events"},
    "destroy_stream": {"streams"},
    "close": {"contexts"},
    # Whether the copy is over nobody knows then: the thread ends, and its process (docs/adr/0017).
    "is_done": {"ranges", "bytes", "pinned"},
}


@dataclass
class Life:
    """What became of it."""

    error: Exception | None = None
    ends: dict[int, tuple[int, ...]] = field(default_factory=dict)


def content(frame: int, rank: int) -> bytes:
    return bytes([frame + 1, rank + 1]) * (BLOCK_BYTES // 2)


def live(driver: FakeDriver) -> Life:
    """Devices opened, pools made and pinned, blocks down and up again, all closed."""
    life = Life()
    try:
        with ExitStack() as undo:
            gpus = open_gpus([fake_uuid(rank) for rank in range(RANKS)], driver)
            assert gpus is not None
            undo.callback(gpus.close, WAIT)
            run(driver, gpus, undo, life)
    except (ConfigInvalid, PoolUnavailable, DeviceLost) as error:
        life.error = error
    return life


def run(driver: FakeDriver, gpus: Gpus, undo: ExitStack, life: Life) -> None:
    cpu = undo.enter_context(HostPool("cpu", FRAMES, BLOCK_BYTES, RANKS))
    gpu = undo.enter_context(CudaPool("gpu", FRAMES, BLOCK_BYTES, gpus.threads, option="--gpu"))
    bench = CudaBench(driver, gpus.threads, gpu, cpu)
    for rank in range(RANKS):
        for frame in DOWN[0]:
            bench.write_gpu(rank, frame, content(frame, rank))
    pinning = Pinning(cpu, gpus.threads, piece_bytes=3 * STRIDE)
    undo.callback(pinning.close)
    pinning.start()
    end = time.monotonic() + WAIT
    while not pinning.is_over and gpus.error is None:
        assert time.monotonic() < end
        time.sleep(0.0002)
    ends = Ends(life.ends)
    movers = Movers(gpu, cpu, None, ends)
    undo.callback(lambda: check(movers.close(WAIT)))
    move(movers, ends, 1, COPY, *DOWN)
    if not life.ends[1]:
        for rank in range(RANKS):
            for frame, below in zip(*DOWN, strict=True):
                assert cpu.frames(rank)[below, :BLOCK_BYTES].tobytes() == content(frame, rank)
                bench.write_gpu(rank, frame, b"\xee" * BLOCK_BYTES)
        move(movers, ends, 2, LOAD, DOWN[1], DOWN[0])
        if not life.ends[2]:
            for rank in range(RANKS):
                assert all(bench.read_gpu(rank, frame) == content(frame, rank) for frame in DOWN[0])


def check(holds: bool) -> None:
    assert holds


def move(movers: Movers, ends: Ends, number: int, link: Link, sources, targets) -> None:
    movers.start([transfer(number, link, sources, targets)], [])
    ends.wait(number)


def make(is_new: bool) -> FakeDriver:
    return FakeDriver(1, devices=RANKS, exports_fds=is_new, copies_batches=is_new)


def calls_of(driver: FakeDriver, rank: int) -> Iterator[tuple[str, int]]:
    calls: Counter[str] = driver[rank].calls
    for call, count in calls.items():
        for number in range(min(count, ASKED_MOST) if call == "is_done" else count):
            yield call, number


@pytest.mark.parametrize("code", [REFUSED, SHORT, LOST])
@pytest.mark.parametrize("is_new", [True, False], ids=["pages, batches", "the old way"])
def test_whatever_call_fails_all_ends_and_nothing_is_lost(is_new: bool, code: str) -> None:
    # Memory files of earlier tests that nobody has any more.
    gc.collect()
    good = make(is_new)
    assert live(good) == Life(None, {1: (), 2: ()})
    assert not any(good[rank].left_behind for rank in range(RANKS))
    good.close()
    tried = 0
    for rank in range(RANKS):
        for call, number in calls_of(good, rank):
            driver = make(is_new)
            driver[rank].fail(call, after=number, code=code)
            before = descriptors()
            life = live(driver)
            where = f"{call} {number} of rank {rank}: {life}"
            assert not driver[rank]._faults[call], f"{where}: it was not made"
            assert descriptors(driver) == before, where
            for device in driver.by_uuid.values():
                check_left(device, call if device is driver[rank] else "", where)
            if life.error is not None:
                assert code in str(life.error), where
            driver.close()
            tried += 1
    assert tried > 60


def descriptors(*drivers: FakeDriver) -> int:
    """Of this process, without those that stand for pages of a device, and without sockets and their like,
    which are none of the tier's: what gRPC still has of earlier tests may end meanwhile."""
    pages = sum(device.memory.pages_count for driver in drivers for device in driver.by_uuid.values())
    opened = [target for fd in os.listdir("/proc/self/fd") if (target := link_of(fd))]
    return sum(not target.startswith(("socket:", "anon_inode:")) for target in opened) - pages


def link_of(fd: str) -> str:
    """What it is open on; empty: it was that of the list itself."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:
        return ""


def check_left(device: FakeDevice, failed: str, where: str) -> None:
    """Of a device that is lost nothing can be given back but its context."""
    left = device.left_behind
    if device.is_lost:
        assert "contexts" not in left or failed == "close", (where, left)
        return
    assert left.keys() <= KEPT.get(failed, set()), (where, left)
    assert all(count == 1 for name, count in left.items() if name != "bytes") or failed == "is_done", where
