"""grpc.health.v1: what a probe sees of a real service, and how soon it hears of its end."""

import asyncio
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from grpc_health.v1 import health_pb2 as hb
from grpc_health.v1.health_pb2_grpc import HealthStub

from kvstore.client.client import Client
from kvstore.client.statuses import UNANSWERED
from kvstore.core import events
from kvstore.core.errors import CheckFailed
from kvstore.core.store import Store
from kvstore.server import server
from kvstore.server.health import NAMES, WATCHERS_MAX
from kvstore.server.server import serve
from kvstore.tiers.disk_io import IoKind, IoThreads
from kvstore.tiers.link_names import LINK_NAMES
from kvstore.tiers.mover import Mover
from kvstore.v1 import kvstore_pb2 as pb
from kvstore.v1.kvstore_pb2_grpc import KVStoreStub
from tests.server.driving import config_for
from tests.server.harness import DEADLINE_SECONDS, Service, allocate, commit, free

if TYPE_CHECKING:
    from kvstore.v1.kvstore_pb2_grpc import KVStoreAsyncStub

SERVING, NOT_SERVING = hb.HealthCheckResponse.SERVING, hb.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = hb.HealthCheckResponse.SERVICE_UNKNOWN


@contextmanager
def probe(service: Service) -> Iterator[HealthStub]:
    with grpc.insecure_channel(f"unix:{service.socket}") as channel:
        yield HealthStub(channel)


def health(service: Service) -> tuple[int, str]:
    command = [sys.executable, "-m", "kvstore", "health", "--socket", str(service.socket)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    return done.returncode, done.stdout


def test_it_serves_from_its_start_on(shared: Service) -> None:
    with probe(shared) as stub:
        for name in NAMES:
            assert stub.Check(hb.HealthCheckRequest(service=name)).status == SERVING
        assert {each.status for each in stub.List(hb.HealthListRequest()).statuses.values()} == {SERVING}
    assert health(shared) == (0, "SERVING\n")


def test_a_service_that_is_not_here(shared: Service) -> None:
    with probe(shared) as stub:
        request = hb.HealthCheckRequest(service="kvstore.v2.KVStore")
        with pytest.raises(grpc.RpcError) as error:
            stub.Check(request)
        assert error.value.code() is grpc.StatusCode.NOT_FOUND
        watch = stub.Watch(request, timeout=60)
        assert next(watch).status == SERVICE_UNKNOWN
        watch.cancel()


def test_a_drain_is_not_serving_and_the_end_of_it_is(shared: Service) -> None:
    with probe(shared) as stub, Client(str(shared.socket)) as client:
        watch = stub.Watch(hb.HealthCheckRequest(), timeout=60)
        assert next(watch).status == SERVING
        client.operator.drain(0.0)
        assert next(watch).status == NOT_SERVING
        assert not client.operator.is_serving()
        assert health(shared) == (1, "NOT_SERVING\n")
        client.operator.drain(0.0, cancel=True)
        assert next(watch).status == SERVING
        watch.cancel()


def test_a_stop_is_told_before_the_stream_ends_and_then_nobody_answers(service: Service) -> None:
    with probe(service) as stub:
        watch = stub.Watch(hb.HealthCheckRequest(), timeout=60)
        assert next(watch).status == SERVING
        assert service.end() == 0
        assert next(watch).status == NOT_SERVING
        with pytest.raises(grpc.RpcError) as error:
            next(watch)
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    assert health(service) == (2, "")
    assert "Traceback" not in service.log


def test_those_who_watch_have_a_bound(shared: Service) -> None:
    with probe(shared) as stub:
        watches = [stub.Watch(hb.HealthCheckRequest(), timeout=60) for _ in range(WATCHERS_MAX)]
        for watch in watches:
            next(watch)
        with pytest.raises(grpc.RpcError) as error:
            next(stub.Watch(hb.HealthCheckRequest(), timeout=60))
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        # A probe that asks needs no place.
        assert stub.Check(hb.HealthCheckRequest()).status == SERVING
        for watch in watches:
            watch.cancel()


# --------------------------------------------------------------------- the store can't go on


def broken_handle(self: Store, event: events.Event) -> None:
    raise KeyError("row 7")


KINDS = list(IoKind)


@pytest.mark.parametrize("name", [*LINK_NAMES, *(f"{name} ends" for name in LINK_NAMES), *map(str, KINDS)])
def test_case_3_12_a_worker_thread_that_dies_is_seen_by_probes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A bug in each link's thread, its end, and that of each of the disk's threads: the ticker looks ten
    times a second. Calls that wait end with INTERNAL."""
    config = config_for(tmp_path, disk_bytes=16 << 20)
    working_on_links = asyncio.Event()
    part, ended, next_io = Mover._part, Mover._ended_piece, IoThreads._next

    def break_part(self: Mover, *arguments: Any) -> Any:
        if working_on_links.is_set() and self._setup.name == name:
            raise CheckFailed(f"planted in {name}")
        return part(self, *arguments)

    def end_thread(self: Mover, *arguments: Any) -> None:
        if working_on_links.is_set() and f"{self._setup.name} ends" == name:
            raise SystemExit
        ended(self, *arguments)

    def end_disk_thread(self: IoThreads, kind: IoKind) -> Any:
        if working_on_links.is_set() and str(kind) == name:
            raise SystemExit
        return next_io(self, kind)

    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    # What waits for a thread that is gone waits in vain.
    monkeypatch.setattr(server, "MOVERS_SECONDS", 0.5)
    monkeypatch.setattr(Mover, "_part", break_part)
    monkeypatch.setattr(Mover, "_ended_piece", end_thread)
    monkeypatch.setattr(IoThreads, "_next", end_disk_thread)

    async def body() -> None:
        serving = asyncio.create_task(serve(config))
        async with grpc.aio.insecure_channel(f"unix:{config.socket}") as channel, asyncio.timeout(60):
            stub, probe = KVStoreStub(channel), HealthStub(channel)
            attach = pb.AttachRequest(request_id=str(uuid.uuid4()), layout=LAYOUT)
            engine = (await stub.Attach(attach, wait_for_ready=True, timeout=20)).engine.name
            watch = probe.Watch(hb.HealthCheckRequest())
            assert (await watch.read()).status == SERVING
            waiting = asyncio.create_task(wait_on(stub, engine))
            working_on_links.set()
            working = asyncio.create_task(work_all_links(stub, engine))
            assert (await watch.read()).status == NOT_SERVING
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await watch.read()
            assert error.value.code() is grpc.StatusCode.UNAVAILABLE
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await waiting
            # INTERNAL; or it was woken for news just then, has asked again, and found nobody any more.
            assert error.value.code() in (grpc.StatusCode.INTERNAL, *UNANSWERED)
            working.cancel()
            await asyncio.wait([working])
            assert await serving == 1

    asyncio.run(body())


LAYOUT = pb.BlockLayout(block_tokens=4, block_bytes=4096, ranks=1, fingerprint=b"f" * 32)


async def wait_on(stub: "KVStoreAsyncStub", engine: str) -> None:
    seen = 0
    while True:
        request = pb.KeepAliveRequest(name=engine, seen_revision=seen, wait=Duration(seconds=30))
        seen = (await stub.KeepAlive(request)).events.revision


async def work_all_links(stub: "KVStoreAsyncStub", engine: str) -> None:
    """Turns of a chat go down to disk, and come back up when nothing of them is left above."""
    number = 0

    async def step(*operations: pb.Operation) -> pb.StepResponse:
        nonlocal number
        number += 1
        return await stub.Step(
            pb.StepRequest(engine=engine, step=number, completed_step=number - 1, operations=operations)
        )

    for turn in range(10_000):
        first = 12 * (turn % 20)
        keys = range(first, first + 12)
        answer = await step(allocate(turn + 1, 4 * 12 + 1, keys, session=f"chat {turn % 20}"))
        while answer.results[0].allocate.state == pb.Sequence.SWAPPING_IN:
            await asyncio.sleep(0.005)
            answer = await step(allocate(turn + 1, 4 * 12 + 1))
        await step(commit(turn + 1, keys))
        await step(free(turn + 1, pb.FreeRequest.SESSION))
        await asyncio.sleep(0.005)


def test_a_bug_in_the_core_is_seen_by_probes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_for(tmp_path)

    async def body() -> None:
        serving = asyncio.create_task(serve(config))
        async with grpc.aio.insecure_channel(f"unix:{config.socket}") as channel, asyncio.timeout(60):
            stub, probe = KVStoreStub(channel), HealthStub(channel)
            attach = pb.AttachRequest(request_id=str(uuid.uuid4()), layout=LAYOUT)
            await stub.Attach(attach, wait_for_ready=True, timeout=20)
            watch = probe.Watch(hb.HealthCheckRequest())
            assert (await watch.read()).status == SERVING
            # The next tick meets it.
            monkeypatch.setattr(Store, "handle", broken_handle)
            assert (await watch.read()).status == NOT_SERVING
            assert await serving == 1

    asyncio.run(body())
