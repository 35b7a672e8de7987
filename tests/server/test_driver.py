"""The driver without gRPC: the first Attach, waits, the end, and what a bug does."""

import asyncio
import os
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import replace
from itertools import count
from pathlib import Path

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from kvstore.core import events
from kvstore.core.answers import AttachAnswer, KeepAliveAnswer, LookupAnswer, StepAnswer
from kvstore.core.calls import Detach, KeepAlive, Lookup, Step
from kvstore.core.errors import CheckFailed, EngineExpired, FieldInvalid, LayoutMismatch, PoolUnavailable
from kvstore.core.operations import Allocate, Commit, Free, Operation
from kvstore.core.store import Store
from kvstore.core.types import BlockKey, EngineId, Retention, SequenceId, StepNumber, Tier
from kvstore.server import pools
from kvstore.server.attaching import Attached
from kvstore.server.clock import now
from kvstore.server.config import ServeConfig
from kvstore.server.decode import AttachCall
from kvstore.server.driver import Driver
from kvstore.server.layout import Layout
from kvstore.server.server import serve
from kvstore.tiers.disk import DiskTier
from kvstore.tiers.movers import Movers
from kvstore.tiers.pool import HostPool
from kvstore.v1 import kvstore_pb2 as pb
from kvstore.v1.kvstore_pb2_grpc import KVStoreStub

LAYOUT = Layout(block_tokens=4, block_bytes=4096, ranks=1, fingerprint=b"f" * 32)
FRAMES = 16


def config_for(folder: Path, *, disk_bytes: int = 0, lease: float = 10.0) -> ServeConfig:
    return ServeConfig(
        socket=folder / "k.sock",
        gpu_bytes=FRAMES * 4096,
        cpu_bytes=64 * 4096,
        disk_path=folder / "disk" if disk_bytes else None,
        disk_bytes=disk_bytes,
        lease_seconds=lease,
    )


class Stopped:
    """Counts how often the driver asked for the end."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.count = 0

    def __call__(self) -> None:
        self.count += 1
        self.event.set()


def run(scenario: Callable[[Driver, Stopped], Coroutine[None, None, None]], config: ServeConfig) -> None:
    async def body() -> None:
        stopped = Stopped()
        disk = None
        if config.disk_path is not None:
            wipe = config.wipe_incompatible
            disk = DiskTier.open(config.disk_path, config.disk_bytes, wipe_incompatible=wipe)
        driver = Driver(config, disk, stopped)
        try:
            async with asyncio.timeout(60):
                await scenario(driver, stopped)
        finally:
            assert await driver.close(5.0)
            if disk is not None:
                disk.close()

    asyncio.run(body())


def attach(driver: Driver, layout: Layout = LAYOUT) -> Coroutine[None, None, Attached]:
    call = AttachCall(request_id=str(uuid.uuid4()), layout=layout, lease_seconds=0.0, build="test")
    return driver.attach(call)


def step(engine: EngineId, number: int, *operations: Operation) -> Step:
    return Step(
        time=now(),
        engine=engine,
        step=StepNumber(number),
        completed_step=StepNumber(number - 1),
        operations=operations,
    )


def keep_alive(engine: EngineId, completed: int = 0) -> KeepAlive:
    return KeepAlive(time=now(), engine=engine, completed_step=StepNumber(completed))


def key(number: int) -> BlockKey:
    """Never 32 zeros, which mean no parent on disk."""
    return BlockKey((number + 1).to_bytes(32, "little"))


def commit_turn(driver: Driver, engine: EngineId, blocks: int) -> None:
    """The finished turn of a session, which goes down to disk by itself."""
    keys = tuple(key(number) for number in range(blocks))
    allocate = Allocate(sequence=SequenceId(1), token_count=4 * blocks, block_keys=keys[:-1], session="chat")
    commit = Commit(sequence=SequenceId(1), first_block=0, block_keys=keys)
    free = Free(sequences=(SequenceId(1),), retention=Retention.SESSION)
    for number, operations in enumerate([(allocate,), (commit, free), ()], start=1):
        driver.ask(step(engine, number, *operations), StepAnswer)


def finish_turn(driver: Driver, engine: EngineId, turn: int) -> None:
    """Ten blocks of a chat of its own, in three steps, turn by turn from 0 on."""
    keys = tuple(key(100 * turn + number) for number in range(10))
    allocate = Allocate(sequence=SequenceId(turn), token_count=40, session=f"chat {turn}")
    commit = Commit(sequence=SequenceId(turn), first_block=0, block_keys=keys)
    free = Free(sequences=(SequenceId(turn),), retention=Retention.SESSION)
    for number, operations in enumerate([(allocate,), (commit, free), ()], start=3 * turn + 1):
        driver.ask(step(engine, number, *operations), StepAnswer)


def disk_frames_used(driver: Driver) -> int:
    [usage] = [tier for tier in driver.reports.usage().tiers if tier.tier is Tier.DISK]
    return usage.frames_total - usage.frames_free


# ------------------------------------------------------------------------ first attach


def test_a_layout_that_is_refused_wipes_nothing(tmp_path: Path) -> None:
    """Its fingerprint is one that is known with another size, though of the folder's geometry."""
    config = replace(config_for(tmp_path, disk_bytes=16 << 20), wipe_incompatible=True)
    wrong = replace(LAYOUT, block_bytes=LAYOUT.block_bytes - 16)

    async def store(driver: Driver, _: Stopped) -> None:
        attached = await attach(driver)
        commit_turn(driver, attached.answer.engine, 2)
        await driver.end_transfers(10.0)

    async def refuse(driver: Driver, _: Stopped) -> None:
        with pytest.raises(LayoutMismatch, match="block_bytes"):
            await attach(driver, wrong)
        engine = (await attach(driver)).answer.engine
        lookup = Lookup(time=now(), engine=engine, block_keys=(key(0), key(1)))
        assert driver.ask(lookup, LookupAnswer).blocks_by_tier == (0, 0, 2)

    run(store, config)
    run(refuse, config)


def test_before_the_first_attach_there_is_no_store(tmp_path: Path) -> None:
    async def scenario(driver: Driver, stopped: Stopped) -> None:
        assert [(tier.tier, tier.frames_total) for tier in driver.reports.usage().tiers] == [
            (Tier.GPU, 0),
            (Tier.CPU, 0),
        ]
        engine = EngineId(str(uuid.uuid4()))
        with pytest.raises(EngineExpired):
            driver.ask(step(engine, 1), StepAnswer)
        with pytest.raises(EngineExpired):
            await driver.keep_alive(keep_alive(engine), 1.0)
        driver.detach(Detach(time=now(), engine=engine))

    run(scenario, config_for(tmp_path))


def test_all_who_attach_at_once_share_one_pool(tmp_path: Path) -> None:
    async def scenario(driver: Driver, stopped: Stopped) -> None:
        attached = await asyncio.gather(*(attach(driver) for _ in range(5)))
        assert len({id(each.pools.gpu) for each in attached}) == 1
        assert len({each.answer.engine for each in attached}) == 5
        [gpu, cpu] = driver.reports.usage().tiers
        assert (gpu.frames_total, cpu.frames_total) == (FRAMES, 64)

    run(scenario, config_for(tmp_path))


def test_the_pools_are_made_though_the_first_caller_has_gone(tmp_path: Path) -> None:
    async def scenario(driver: Driver, stopped: Stopped) -> None:
        impatient = asyncio.create_task(attach(driver))
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.wait([impatient])
        assert (await attach(driver)).answer.created
        assert len(driver.reports.usage().engines) == 1

    run(scenario, config_for(tmp_path))


def test_later_layouts_must_have_the_same_sizes(tmp_path: Path) -> None:
    async def scenario(driver: Driver, stopped: Stopped) -> None:
        await attach(driver)
        other = Layout(block_tokens=4, block_bytes=8192, ranks=1, fingerprint=b"g" * 32)
        with pytest.raises(LayoutMismatch) as refused:
            await attach(driver, other)
        assert "4096 bytes" in refused.value.message
        assert "8192 bytes" in refused.value.value
        # Another model of the same sizes is only another namespace.
        await attach(driver, Layout(block_tokens=4, block_bytes=4096, ranks=1, fingerprint=b"g" * 32))

    run(scenario, config_for(tmp_path))


def test_a_layout_of_which_nothing_fits_is_refused_and_makes_no_pools(tmp_path: Path) -> None:
    async def scenario(driver: Driver, stopped: Stopped) -> None:
        huge = Layout(block_tokens=4, block_bytes=FRAMES * 4096 + 1, ranks=1, fingerprint=b"f" * 32)
        with pytest.raises(FieldInvalid) as refused:
            await attach(driver, huge)
        assert refused.value.field == "layout.block_bytes"
        assert "--gpu" in refused.value.remedy
        await attach(driver)

    run(scenario, config_for(tmp_path))


def test_want_of_memory_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "PAUSE_SECONDS", 0.01)
    tries = refuse_memory(monkeypatch, 3)

    async def scenario(driver: Driver, stopped: Stopped) -> None:
        assert (await attach(driver)).answer.created
        assert len(tries) == 4

    run(scenario, config_for(tmp_path))


def test_want_of_memory_that_lasts_names_the_old_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(pools, "TRY_SECONDS", 0.05)
    refuse_memory(monkeypatch, 10**6)
    before = len(os.listdir("/proc/self/fd"))

    async def scenario(driver: Driver, stopped: Stopped) -> None:
        with pytest.raises(PoolUnavailable) as refused:
            await attach(driver)
        assert "engines of an earlier service" in refused.value.remedy

    run(scenario, config_for(tmp_path))
    assert len(os.listdir("/proc/self/fd")) == before


def refuse_memory(monkeypatch: pytest.MonkeyPatch, times: int) -> list[str]:
    """The CPU pool, which is made second, is refused so often; returns the tries."""
    tries: list[str] = []
    make = HostPool

    def make_or_refuse(name: str, *sizes: int, option: str) -> HostPool:
        if name == "cpu":
            tries.append(name)
            if len(tries) <= times:
                raise PoolUnavailable("none left", field=option, remedy="lower it")
        return make(name, *sizes, option=option)

    monkeypatch.setattr(pools, "HostPool", make_or_refuse)
    return tries


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
