"""Drain by a call, a command and a stop: what is refused meanwhile, and what a restart then finds."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from kvstore.client import operations
from kvstore.client.attaching import Layout
from kvstore.client.client import Client
from kvstore.client.errors import Refused
from kvstore.core.errors import Draining
from kvstore.core.types import Tier
from kvstore.server.driver import Driver
from kvstore.tiers.disk import DiskTier, DiskWriteFailed
from kvstore.v1 import kvstore_pb2 as pb
from tests.server.driving import Stopped, attach, commit_turn, config_for, disk_frames_used, run
from tests.server.harness import (
    BLOCK_TOKENS,
    DEADLINE_SECONDS,
    Engine,
    Service,
    allocate,
    content,
    fill,
    free,
    key,
    layout,
    refusal,
    until,
)

MakeService = Callable[..., Service]


@pytest.fixture
def disk(folder: Path) -> tuple[str, ...]:
    return ("--disk", str(folder / "disk"), "--disk-bytes", "16MiB")


def found_on_disk(service: Service, keys: range) -> int:
    """By a service that has been started again."""
    with service.stub() as stub, Engine(stub) as engine:
        request = pb.LookupRequest(engine=engine.name, block_keys=[key(number) for number in keys])
        return stub.Lookup(request).blocks_by_tier["disk"]


def command(service: Service, *words: str) -> "subprocess.CompletedProcess[str]":
    line = [sys.executable, "-m", "kvstore", "drain", "--socket", str(service.socket), *words]
    return subprocess.run(line, capture_output=True, text=True, timeout=2 * DEADLINE_SECONDS)


def test_what_runs_is_written_and_goes_on_and_a_restart_finds_it(
    make_service: MakeService, disk: tuple[str, ...]
) -> None:
    """Blocks of a sequence that still runs, of one that is only cached, and of a chat."""
    service = make_service(*disk).start()
    with service.stub() as stub, Engine(stub) as engine:
        fill(engine, 1, range(3))
        fill(engine, 2, range(10, 14))
        engine.step(free(2))
        drained = stub.Drain(pb.DrainRequest(timeout=Duration(seconds=30)), timeout=60)
        assert (drained.blocks_written, drained.blocks_left) == (7, 0)
        assert stub.GetUsage(pb.GetUsageRequest()).draining
        # It goes on: it grows, and what it commits is written by the next one.
        engine.step(allocate(1, 5 * BLOCK_TOKENS))
        keys = [key(number) for number in range(3, 5)]
        engine.step(pb.Operation(commit=pb.CommitRequest(sequence=1, first_block=3, block_keys=keys)))
        engine.step()
        drained = stub.Drain(pb.DrainRequest(timeout=Duration(seconds=30)), timeout=60)
        assert (drained.blocks_written, drained.blocks_left) == (2, 0)
        assert stub.Drain(pb.DrainRequest(), timeout=90) == pb.DrainResponse()
    assert service.end(signal.SIGKILL) != 0
    service.start()
    assert found_on_disk(service, range(5)) == 5
    with service.stub() as stub, Engine(stub) as engine:
        engine.step(allocate(1, 5 * BLOCK_TOKENS, range(10, 14)))

        def sequence() -> pb.Sequence:
            return stub.GetSequence(pb.GetSequenceRequest(engine=engine.name, sequence=1))

        loaded = until(sequence, lambda each: each.state == pb.Sequence.RESIDENT)
        assert loaded.valid_tokens == 4 * BLOCK_TOKENS
        assert [engine.read(frame) for frame in loaded.block_table[:4]] == [
            content(number) for number in range(10, 14)
        ]


def test_a_wish_starts_nothing_before_a_restart(make_service: MakeService, disk: tuple[str, ...]) -> None:
    service = make_service(*disk).start()
    with service.stub() as stub, Engine(stub) as engine:
        fill(engine, 1, range(3))
        stub.Drain(pb.DrainRequest(timeout=Duration(seconds=30)), timeout=60)
    assert service.end() == 0
    service.start()
    keys = [key(number) for number in range(3)]
    with service.stub() as stub, Engine(stub) as engine:
        wish = pb.PrefetchRequest(engine=engine.name, block_keys=keys)
        stub.Drain(pb.DrainRequest(timeout=Duration(seconds=5)), timeout=20)
        assert stub.Prefetch(wish) == pb.PrefetchResponse()
        wrong = pb.PrefetchRequest(engine=engine.name, block_keys=keys, target=pb.TIER_DISK)
        with pytest.raises(grpc.RpcError) as error:
            stub.Prefetch(wrong)
        assert refusal(error.value).reason == "FIELD_INVALID"
        stub.Drain(pb.DrainRequest(cancel=True))
        assert stub.Prefetch(wish).blocks_started == 3


def test_new_work_is_refused_and_taken_again_after_a_cancel(service: Service) -> None:
    with service.stub() as stub, Engine(stub) as engine:
        engine.step(allocate(1, 8))
        drained = stub.Drain(pb.DrainRequest(timeout=Duration(seconds=5)), timeout=20)
        assert drained == pb.DrainResponse(), "nothing was committed"
        request = pb.AttachRequest(request_id=str(uuid.uuid4()), layout=layout())
        with pytest.raises(grpc.RpcError) as error:
            stub.Attach(request)
        assert (error.value.code(), refusal(error.value).reason) == (
            grpc.StatusCode.FAILED_PRECONDITION,
            "DRAINING",
        )
        old, new = engine.step(allocate(1, 12), allocate(2, 12)).results
        assert old.allocate.outcome == pb.OUTCOME_OK
        assert (new.allocate.outcome, new.allocate.frames_short) == (pb.OUTCOME_LATER, 0)
        stub.Drain(pb.DrainRequest(cancel=True), timeout=20)
        assert not stub.GetUsage(pb.GetUsageRequest()).draining
        assert engine.step(allocate(2, 12)).results[0].allocate.outcome == pb.OUTCOME_OK
        stub.Attach(request)


def test_before_the_first_attach_there_is_nothing_to_write_and_nobody_is_let_in(service: Service) -> None:
    with service.stub() as stub:
        assert stub.Drain(pb.DrainRequest(), timeout=90) == pb.DrainResponse()
        with pytest.raises(grpc.RpcError) as error:
            Engine(stub)
        assert refusal(error.value).reason == "DRAINING"
        stub.Drain(pb.DrainRequest(cancel=True), timeout=20)
        with Engine(stub):
            pass


def test_without_a_disk_it_says_what_a_restart_loses(service: Service) -> None:
    with service.stub() as stub, Engine(stub) as engine:
        fill(engine, 1, range(3))
        with Client(str(service.socket)) as client:
            drained = client.operator.drain(30.0)
        assert (drained.blocks_written, drained.blocks_left) == (0, 3)
    done = command(service, "--stop")
    assert (done.returncode, done.stdout) == (
        1,
        "There is no disk tier to write to, 3 left; the service stops.\n",
    )
    assert service.process is not None
    assert service.process.wait(DEADLINE_SECONDS) == 0


def test_the_command_drains_stops_and_cancels(make_service: MakeService, disk: tuple[str, ...]) -> None:
    service = make_service(*disk).start()
    with service.stub() as stub, Engine(stub) as engine:
        fill(engine, 1, range(3))
        done = command(service, "--timeout", "30")
        assert (done.returncode, done.stdout) == (0, "3 blocks written, 0 left.\n")
        told = command(service, "--timeout", "30", "--json").stdout
        assert json.loads(told) == {"draining": True, "stops": False, "blocks_written": 0, "blocks_left": 0}
        assert json.loads(command(service, "--cancel", "--json").stdout)["draining"] is False
        assert command(service, "--cancel").stdout == "The service takes new work again.\n"
        engine.step(allocate(2, 4))
        assert command(service, "--stop").returncode == 0
        assert service.process is not None
        assert service.process.wait(DEADLINE_SECONDS) == 0
    service.start()
    assert found_on_disk(service, range(3)) == 3


def test_refusals_name_their_field(shared: Service) -> None:
    with shared.stub() as stub:
        for request, field in (
            (pb.DrainRequest(timeout=Duration(seconds=3601)), "timeout"),
            (pb.DrainRequest(timeout=Duration(seconds=-1)), "timeout"),
            (pb.DrainRequest(cancel=True, stop=True), "cancel"),
        ):
            with pytest.raises(grpc.RpcError) as error:
                stub.Drain(request)
            assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert refusal(error.value).metadata["field"] == field
        assert not stub.GetUsage(pb.GetUsageRequest()).draining


@pytest.mark.parametrize("seconds", ["0", "30"])
def test_a_stop_drains_where_it_is_told_to(
    make_service: MakeService, disk: tuple[str, ...], seconds: str
) -> None:
    service = make_service(*disk, "--drain-seconds", seconds).start()
    with service.stub() as stub, Engine(stub) as engine:
        fill(engine, 1, range(6))
        assert service.end() == 0
    service.start()
    assert found_on_disk(service, range(6)) == (6 if seconds == "30" else 0)


def test_get_sequence_of_a_client(service: Service) -> None:
    with Client(str(service.socket)) as client:
        client.attach(Layout(block_tokens=4, block_bytes=6000, fingerprint=b"f" * 32))
        client.step([operations.allocate(7, 10, session="chat")])
        sequence = client.get_sequence(7)
        assert (sequence.id, sequence.state, sequence.activity) == (
            7,
            pb.Sequence.RESIDENT,
            pb.ACTIVITY_RUNNING,
        )
        assert (sequence.token_count, sequence.valid_tokens, sequence.session) == (10, 0, "chat")
        assert list(sequence.block_table) == client.tables.table(7)
        with pytest.raises(Refused) as refused:
            client.get_sequence(8)
        assert (refused.value.reason, refused.value.code) == (
            "SEQUENCE_UNKNOWN",
            grpc.StatusCode.NOT_FOUND,
        )


# ------------------------------------------------------------------ without a process between


def test_a_disk_that_fails_ends_the_drain_before_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise DiskWriteFailed("planted")

    async def scenario(driver: Driver, stopped: Stopped) -> None:
        commit_turn(driver, (await attach(driver)).answer.engine, 6)
        assert await driver.drain_to_disk(50.0) == (0, 6)
        monkeypatch.undo()
        assert await driver.drain_to_disk(50.0) == (6, 0)
        assert disk_frames_used(driver) == 6

    monkeypatch.setattr(DiskTier, "write", fail)
    run(scenario, config_for(tmp_path, disk_bytes=16 << 20))


def test_a_drain_whose_time_is_over_says_what_is_left(tmp_path: Path) -> None:
    async def scenario(driver: Driver, stopped: Stopped) -> None:
        commit_turn(driver, (await attach(driver)).answer.engine, 6)
        assert await driver.drain_to_disk(0.0) == (0, 6)
        # Two at once come to the same end.
        both = asyncio.gather(driver.drain_to_disk(50.0), driver.drain_to_disk(50.0))
        assert [left for _, left in await both] == [0, 0]

    run(scenario, config_for(tmp_path, disk_bytes=16 << 20))


def test_a_drain_that_is_cancelled_waits_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, write = threading.Event(), DiskTier.write

    def wait_and_write(self: DiskTier, *arguments: Any, **named: Any) -> None:
        assert gate.wait(DEADLINE_SECONDS)
        write(self, *arguments, **named)

    async def scenario(driver: Driver, stopped: Stopped) -> None:
        engine = (await attach(driver)).answer.engine
        # Not before: it is tried out how quick the disk is.
        monkeypatch.setattr(DiskTier, "write", wait_and_write)
        commit_turn(driver, engine, 6)
        draining = asyncio.create_task(driver.drain_to_disk(3_000.0))
        await asyncio.sleep(0)
        driver.cancel_drain()
        assert await draining == (0, 6)
        gate.set()
        # What was on its way is not called back.
        await driver.end_transfers(DEADLINE_SECONDS)
        assert disk_frames_used(driver) == 6

    run(scenario, config_for(tmp_path, disk_bytes=16 << 20))


def test_one_who_attaches_while_a_drain_begins_is_refused_and_finds_the_pools_later(tmp_path: Path) -> None:
    async def scenario(driver: Driver, stopped: Stopped) -> None:
        coming = asyncio.create_task(attach(driver))
        await asyncio.sleep(0)
        await driver.drain_to_disk(0.0)
        serving, text = driver.reports.health_page()
        assert (serving, text.splitlines()[:2]) == (
            False,
            ["not serving", "draining: no new work is taken"],
        )
        with pytest.raises(Draining):
            await coming
        driver.cancel_drain()
        assert driver.reports.health_page()[0]
        assert (await attach(driver)).answer.created
        assert {tier.tier for tier in driver.reports.usage().tiers} == {Tier.GPU, Tier.CPU}

    run(scenario, config_for(tmp_path))
