"""The size of the disk's folder: fresh whenever it is told, and told soon, whatever the device does."""

import asyncio
import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kvstore.cli.main import app
from kvstore.server import disk_size
from kvstore.server.disk_size import DiskSize
from kvstore.tiers.disk_folder import FolderSize
from tests.server.harness import Service, until


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    time = [100.0]
    monkeypatch.setattr(disk_size, "now", lambda: time[0])
    return time


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine, a look that ends has ended in time."""
    monkeypatch.setattr(disk_size, "WAIT_SECONDS", 60.0)


def sized(held_bytes: int) -> FolderSize:
    return FolderSize(held_bytes=held_bytes, obtainable_bytes=2 * held_bytes)


def told(size: DiskSize) -> int:
    asyncio.run(size.look())
    assert size.last.obtainable_bytes == 2 * size.last.held_bytes
    return size.last.held_bytes


@pytest.mark.usefixtures("patient")
def test_what_is_told_after_a_pause_is_so_now(clock: list[float]) -> None:
    looks = iter(range(1, 100))
    size = DiskSize(lambda: sized(next(looks)))
    assert [told(size) for _ in range(5)] == [1] * 5
    clock[0] += disk_size.FRESH_SECONDS
    assert told(size) == 2


@pytest.mark.usefixtures("patient")
def test_all_who_ask_meanwhile_wait_for_the_same_look(clock: list[float]) -> None:
    looks = iter(range(1, 100))
    size = DiskSize(lambda: sized(next(looks)))

    async def main() -> list[int]:
        async def ask() -> int:
            await size.look()
            return size.last.held_bytes

        return await asyncio.gather(*(ask() for _ in range(10)))

    assert asyncio.run(main()) == [1] * 10


def test_a_device_that_hangs_holds_nobody_up_and_takes_one_thread(clock: list[float]) -> None:
    looking, goes_on = threading.Event(), threading.Event()
    looks = 0

    def hang() -> FolderSize:
        nonlocal looks
        looks += 1
        looking.set()
        goes_on.wait()
        return sized(7)

    size = DiskSize(hang)
    assert told(size) == 0
    looking.wait()
    for _ in range(3):
        clock[0] += 100
        assert told(size) == 0
    assert looks == 1
    goes_on.set()
    until(lambda: told(size), lambda held: held == 7)


@pytest.mark.usefixtures("patient")
def test_who_goes_away_while_it_looks_takes_the_look_from_nobody(clock: list[float]) -> None:
    looking, goes_on = threading.Event(), threading.Event()

    def slow() -> FolderSize:
        looking.set()
        goes_on.wait()
        return sized(7)

    size = DiskSize(slow)

    async def main() -> None:
        gone, stays = asyncio.create_task(size.look()), asyncio.create_task(size.look())
        await asyncio.to_thread(looking.wait)
        gone.cancel()
        await asyncio.wait([gone])
        goes_on.set()
        await stays

    asyncio.run(main())
    assert size.last == sized(7)


@pytest.mark.usefixtures("patient")
def test_a_look_that_fails_changes_nothing(clock: list[float]) -> None:
    looks = [5]

    def look() -> FolderSize:
        if looks:
            return sized(looks.pop())
        raise OSError("gone")

    size = DiskSize(look)
    assert told(size) == 5
    clock[0] += 100
    assert told(size) == 5


def test_a_service_tells_that_its_cap_is_larger_than_its_device(
    make_service: Callable[..., Service], folder: Path
) -> None:
    cap = 2 * shutil.disk_usage(folder).total
    service = make_service("--disk", str(folder / "disk"), "--disk-bytes", str(cap)).start()

    def status() -> dict[str, Any]:
        result = CliRunner().invoke(app, ["status", "--socket", str(service.socket), "--json"])
        told: dict[str, Any] = json.loads(result.stdout)
        return told

    # A device that is busy may make the first answer go without.
    told = until(status, lambda told: told["tiers"][-1]["bytes_obtainable"] != "0")
    disk = told["tiers"][-1]
    assert disk["tier"] == "TIER_DISK"
    assert 0 < int(disk["bytes_used"]) <= int(disk["bytes_obtainable"]) < int(disk["bytes_total"]) == cap
    assert [each["about"] for each in told["advice"]] == ["disk_room"]
