"""The driver without gRPC: waits, what a bug does, the disk, the end."""

import asyncio
import os
import uuid
from dataclasses import replace
from itertools import count
from pathlib import Path

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from kvstore.core import events
from kvstore.core.answers import AttachAnswer, KeepAliveAnswer, LookupAnswer, StepAnswer
from kvstore.core.calls import Lookup
from kvstore.core.errors import CheckFailed
from kvstore.core.store import Store
from kvstore.core.types import Tier
from kvstore.server.clock import now
from kvstore.server.driver import Driver
from kvstore.server.server import serve
from kvstore.tiers.movers import Movers
from kvstore.v1 import kvstore_pb2 as pb
from kvstore.v1.kvstore_pb2_grpc import KVStoreStub
from tests.server.driving import (
    Stopped,
    attach,
    commit_turn,
    config_for,
    disk_frames_used,
    finish_turn,
    keep_alive,
    key,
    run,
    step,
)

# -------------------------------------------------------------------------------- waits


def test_a_wait_ends_with_half_the_lease(tmp_path: Path) -> None:
    async def scenario(driver: Driver, stopped: Stopped) -> None:
        engine = (await attach(driver)).answer.engine
        begin = now()
        answer = await driver.keep_alive(keep_alive(engine), 30.0)
        assert answer.notices == ()
        assert answer.lease_expire_time > now()
        assert now() - begin < 5.0

    run(scenario, config_for(tmp_path, lease=0.4))


def test_a_step_that_overtakes_a_wait_does_not_fail_it(tmp_path: Path) -> None:
    async def scenario(driver: Driver, stopped: Stopped) -> None:
        engine = (await attach(driver)).answer.engine
        waiting = asyncio.create_task(driver.keep_alive(keep_alive(engine), 30.0))
        await asyncio.sleep(0)
        for number in range(1, 4):
            driver.ask(step(engine, number), StepAnswer)
        driver.end_waits()
        assert (await waiting).notices == ()

    run(scenario, config_for(tmp_path))


def test_waits_have_a_bound_and_an_end(tmp_path: Path) -> None:
    async def scenario(driver: Driver, stopped: Stopped) -> None:
        engine = (await attach(driver)).answer.engine
        waiting = [asyncio.create_task(driver.keep_alive(keep_alive(engine), 30.0)) for _ in range(10)]
        done, pending = await asyncio.wait(waiting, timeout=0.2)
        assert (len(done), len(pending)) == (6, 4)
        driver.end_waits()
        await asyncio.wait_for(asyncio.gather(*waiting), 2.0)
        assert isinstance(await driver.keep_alive(keep_alive(engine), 30.0), KeepAliveAnswer)

    run(scenario, config_for(tmp_path))


# --------------------------------------------------------------------------------- bugs


def test_a_bug_in_the_core_stops_the_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(driver: Driver, stopped: Stopped) -> None:
        engine = (await attach(driver)).answer.engine
        waiting = asyncio.create_task(driver.keep_alive(keep_alive(engine), 30.0))
        await asyncio.sleep(0)

        def broken(self: Store, event: events.Event) -> None:
            raise KeyError("row 7")

        monkeypatch.setattr(Store, "handle", broken)
        with pytest.raises(CheckFailed, match="row 7"):
            driver.ask(step(engine, 1), StepAnswer)
        assert isinstance(driver.failure, KeyError)
        # Also when the core would work again: what it holds can't be trusted.
        monkeypatch.undo()
        for call in (waiting, driver.keep_alive(keep_alive(engine), 1.0), attach(driver)):
            with pytest.raises(CheckFailed):
                await call
        assert stopped.count == 1

    run(scenario, config_for(tmp_path))


def test_an_answer_of_the_wrong_kind_is_a_bug_too(tmp_path: Path) -> None:
    async def scenario(driver: Driver, stopped: Stopped) -> None:
        engine = (await attach(driver)).answer.engine
        with pytest.raises(CheckFailed):
            driver.ask(step(engine, 1), AttachAnswer)
        assert stopped.count == 1

    run(scenario, config_for(tmp_path))


def test_a_dead_mover_stops_the_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(driver: Driver, stopped: Stopped) -> None:
        await attach(driver)
        monkeypatch.setattr(Movers, "alive", lambda self: False)
        await asyncio.wait_for(stopped.event.wait(), 5.0)
        assert "mover" in str(driver.failure)

    run(scenario, config_for(tmp_path))


def test_a_bug_ends_the_server_with_status_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_for(tmp_path)
    attach_request = pb.AttachRequest(
        request_id=str(uuid.uuid4()),
        layout=pb.BlockLayout(block_tokens=4, block_bytes=4096, ranks=1, fingerprint=b"f" * 32),
    )

    def broken(self: Store, event: events.Event) -> None:
        raise KeyError("row 7")

    async def body() -> None:
        serving = asyncio.create_task(serve(config))
        async with grpc.aio.insecure_channel(f"unix:{config.socket}") as channel:
            stub = KVStoreStub(channel)
            name = (await stub.Attach(attach_request, wait_for_ready=True, timeout=20)).engine.name
            waiting = stub.KeepAlive(pb.KeepAliveRequest(name=name, wait=Duration(seconds=30)))
            # Answered after the KeepAlive, which has got to its wait then.
            await stub.Lookup(pb.LookupRequest(engine=name))
            monkeypatch.setattr(Store, "handle", broken)
            for call in (stub.Step(pb.StepRequest(engine=name, step=1)), waiting):
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await call
                assert error.value.code() is grpc.StatusCode.INTERNAL
        assert await asyncio.wait_for(serving, 20) == 1

    asyncio.run(body())
    assert os.listdir(tmp_path) == []


# --------------------------------------------------------------------------------- disk


def test_what_is_on_its_way_is_drained_to_disk_and_found_again(tmp_path: Path) -> None:
    config = config_for(tmp_path, disk_bytes=16 << 20)

    async def write(driver: Driver, stopped: Stopped) -> None:
        commit_turn(driver, (await attach(driver)).answer.engine, 6)
        await driver.end_transfers(10.0)
        assert disk_frames_used(driver) == 6

    async def find(driver: Driver, stopped: Stopped) -> None:
        engine = (await attach(driver)).answer.engine
        keys = tuple(key(number) for number in range(6))
        lookup = Lookup(time=now(), engine=engine, block_keys=keys)
        assert driver.ask(lookup, LookupAnswer).blocks_by_tier == (0, 0, 6)

    run(write, config)
    run(find, config)


def test_what_the_scrub_finds_bad_is_found_by_nobody(tmp_path: Path) -> None:
    config = replace(config_for(tmp_path, disk_bytes=16 << 20), scrub_bytes=1 << 30)

    async def write(driver: Driver, stopped: Stopped) -> None:
        commit_turn(driver, (await attach(driver)).answer.engine, 6)
        await driver.end_transfers(10.0)

    async def find(driver: Driver, stopped: Stopped) -> None:
        engine = (await attach(driver)).answer.engine
        keys = tuple(key(number) for number in range(6))
        for _ in count():
            lookup = Lookup(time=now(), engine=engine, block_keys=keys)
            if driver.ask(lookup, LookupAnswer).blocks_cached < 6:
                break
            await asyncio.sleep(0.01)
        assert disk_frames_used(driver) < 6

    run(write, config)
    with (tmp_path / "disk" / "segment-000000").open("r+b") as segment:
        segment.seek(3 * 4096)
        byte = segment.read(1)
        segment.seek(3 * 4096)
        segment.write(bytes([byte[0] ^ 1]))
    run(find, config)


def test_a_smaller_disk_than_before_keeps_what_fits(tmp_path: Path) -> None:
    async def write(driver: Driver, stopped: Stopped) -> None:
        engine = (await attach(driver)).answer.engine
        for turn in range(80):
            finish_turn(driver, engine, turn)
            await driver.end_transfers(10.0)
        assert disk_frames_used(driver) == 800

    async def find(driver: Driver, stopped: Stopped) -> None:
        engine = (await attach(driver)).answer.engine
        [disk] = [tier for tier in driver.reports.usage().tiers if tier.tier is Tier.DISK]
        assert disk.frames_total < 800
        assert disk_frames_used(driver) > 0
        lookup = Lookup(time=now(), engine=engine, block_keys=(key(7900),))
        assert driver.ask(lookup, LookupAnswer).blocks_cached == 1

    run(write, config_for(tmp_path, disk_bytes=16 << 20))
    run(find, config_for(tmp_path, disk_bytes=4 << 20))


def test_a_stop_with_copies_still_queued_is_a_clean_one(tmp_path: Path) -> None:
    """More than the stop waits for: what runs ends, and nothing follows from it."""

    async def work(driver: Driver, stopped: Stopped) -> None:
        engine = (await attach(driver)).answer.engine
        for turn in range(20):
            finish_turn(driver, engine, turn)
        assert driver.reports.usage().tiers[1].blocks_moved_in < 200
        assert await driver.close(5.0)
        assert driver.failure is None

    run(work, config_for(tmp_path, disk_bytes=16 << 20))
