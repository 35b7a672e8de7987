"""The size of the disk's folder: told at once, whatever the device does."""

import threading

import pytest

from kvstore.server import disk_size
from kvstore.server.disk_size import DiskSize
from tests.server.harness import until


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    time = [100.0]
    monkeypatch.setattr(disk_size, "now", lambda: time[0])
    return time


def test_it_is_looked_at_again_when_the_last_look_is_old(clock: list[float]) -> None:
    looks = iter(range(1, 100))
    size = DiskSize(lambda: next(looks))
    until(size.read, lambda told: told == 1)
    for _ in range(10):
        assert size.read() == 1
    clock[0] += disk_size.FRESH_SECONDS
    until(size.read, lambda told: told == 2)


def test_a_device_that_hangs_holds_nobody_up_and_takes_one_thread(clock: list[float]) -> None:
    looking, goes_on = threading.Event(), threading.Event()
    looks = 0

    def hang() -> int:
        nonlocal looks
        looks += 1
        looking.set()
        goes_on.wait()
        return 7

    size = DiskSize(hang)
    assert size.read() == 0
    looking.wait()
    for _ in range(10):
        clock[0] += 100
        assert size.read() == 0
    assert looks == 1
    goes_on.set()
    until(size.read, lambda told: told == 7)


def test_a_look_that_fails_changes_nothing(clock: list[float]) -> None:
    looks = [5]

    def look() -> int:
        if looks:
            return looks.pop()
        raise OSError("gone")

    size = DiskSize(look)
    until(size.read, lambda told: told == 5)
    clock[0] += 100
    size.read()
    assert size._thread is not None
    size._thread.join()
    assert size.read() == 5
