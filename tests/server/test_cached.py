"""Prefetch, Retain and Forget over the real service, with a disk that outlives it."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from kvstore.client.attaching import Layout
from kvstore.client.client import Client
from kvstore.v1 import kvstore_pb2 as pb
from kvstore.v1.kvstore_pb2_grpc import KVStoreStub
from tests.server.harness import (
    BLOCK_BYTES,
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
    tier,
    until,
)

MakeService = Callable[..., Service]
FINGERPRINT = layout().fingerprint.hex()


@contextmanager
def attached(service: Service) -> Iterator[tuple[KVStoreStub, Engine]]:
    with service.stub() as stub, Engine(stub) as engine:
        yield stub, engine


def cached(stub: KVStoreStub, engine: Engine, keys: range) -> dict[str, int]:
    request = pb.LookupRequest(engine=engine.name, block_keys=[key(number) for number in keys])
    return dict(stub.Lookup(request).blocks_by_tier)


def chat(stub: KVStoreStub, engine: Engine, sequence: int, keys: range, session: str) -> None:
    """A turn of it, which lies on disk when this returns."""
    before = tier(stub.GetUsage(pb.GetUsageRequest()), pb.TIER_DISK).blocks_moved_in
    fill(engine, sequence, keys, session=session)
    engine.step(free(sequence, pb.FreeRequest.SESSION))
    engine.step()
    until(
        lambda: tier(stub.GetUsage(pb.GetUsageRequest()), pb.TIER_DISK).blocks_moved_in,
        lambda count: count == before + len(keys),
    )


def forget(stub: KVStoreStub, **named: Any) -> pb.ForgetResponse:
    request = pb.ForgetRequest(**named, wait=Duration(seconds=int(DEADLINE_SECONDS)))
    return stub.Forget(request, timeout=2 * DEADLINE_SECONDS)


def refused(call: Callable[[], object]) -> tuple[grpc.StatusCode, str, str]:
    with pytest.raises(grpc.RpcError) as error:
        call()
    info = refusal(error.value)
    return error.value.code(), info.reason, info.metadata.get("field", "")


@pytest.fixture
def make_stored(make_service: MakeService, tmp_path: Path) -> Callable[..., Service]:
    def make(*flags: str) -> Service:
        return make_service("--disk", str(tmp_path / "disk"), "--disk-bytes", "16MiB", *flags).start()

    return make


def test_a_chat_comes_back_after_a_restart_by_the_name_of_its_session(
    make_stored: Callable[..., Service],
) -> None:
    service = make_stored()
    with attached(service) as (stub, engine):
        chat(stub, engine, 1, range(4), "chat")
    service.end()
    service.start()
    with attached(service) as (stub, engine):
        assert cached(stub, engine, range(4)) == {"disk": 4}
        request = pb.PrefetchRequest(engine=engine.name, session="chat", target=pb.TIER_GPU)
        assert stub.Prefetch(request).blocks_started == 4
        until(lambda: cached(stub, engine, range(4)), lambda found: found == {"gpu": 4})
        [result] = engine.step(allocate(1, 4 * BLOCK_TOKENS + 1, range(4), session="chat")).results
        assert (result.allocate.state, result.allocate.gpu_tokens) == (
            pb.Sequence.RESIDENT,
            4 * BLOCK_TOKENS,
        )
        frames = result.allocate.block_table[:4]
        assert [engine.read(frame) for frame in frames] == [content(number) for number in range(4)]


def test_what_was_forgotten_is_off_the_disk_when_it_is_answered(make_stored: Callable[..., Service]) -> None:
    """Killed right after the answer, the service finds nothing of it at its next start."""
    service = make_stored()
    with attached(service) as (stub, engine):
        chat(stub, engine, 1, range(4), "chat")
        chat(stub, engine, 2, range(10, 14), "other")
        answer = forget(stub, session="chat")
        assert (answer.blocks_forgotten, answer.done) == (4, True)
        assert cached(stub, engine, range(4)) == {}
        service.end(signal.SIGKILL)
    service.start()
    with attached(service) as (stub, engine):
        assert cached(stub, engine, range(4)) == {}
        assert cached(stub, engine, range(10, 14)) == {"disk": 4}
        prefetches = [pb.PrefetchRequest(engine=engine.name, session=name) for name in ("chat", "other")]
        assert [stub.Prefetch(each).blocks_started for each in prefetches] == [0, 4]


def test_what_a_tenant_a_model_or_an_engine_has_left_is_forgotten(
    make_stored: Callable[..., Service],
) -> None:
    """Of an engine also after a restart: the disk knows who has written what."""
    service = make_stored()
    with attached(service) as (stub, engine):
        chat(stub, engine, 1, range(4), "chat")
        name = engine.name
    service.end()
    service.start()
    with attached(service) as (stub, engine):
        for sequence, named in enumerate(
            ({"engine": name}, {"tenant": "default"}, {"namespace": FINGERPRINT})
        ):
            assert sum(cached(stub, engine, range(4)).values()) == 4
            assert forget(stub, **named).blocks_forgotten == 4
            assert cached(stub, engine, range(4)) == {}
            assert tier(stub.GetUsage(pb.GetUsageRequest()), pb.TIER_DISK).frames_cached == 0
            chat(stub, engine, 1 + sequence, range(4), "chat")


def test_whom_nobody_knows_is_refused_by_the_field_that_names_him(service: Service) -> None:
    invalid, precondition = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION
    with service.stub() as stub:
        found = refused(lambda: forget(stub, session="chat"))
        assert found == (precondition, "STORE_NOT_MADE", "")
    with attached(service) as (stub, engine):
        other = "engines/01234567-89ab-4cde-8f01-23456789abcd"
        for named, field in (
            ({}, "session"),
            ({"session": "chat", "engine": engine.name}, "session"),
            ({"namespace": "no digits"}, "namespace"),
            ({"namespace": "0" * 64}, "namespace"),
            ({"engine": "engines/1"}, "engine"),
            ({"engine": other}, "engine"),
        ):
            assert refused(lambda named=named: forget(stub, **named)) == (invalid, "FIELD_INVALID", field)  # type: ignore[misc]
        denied = grpc.StatusCode.PERMISSION_DENIED
        assert refused(lambda: forget(stub, tenant="nobody")) == (denied, "TENANT", "tenant")
        # Of what it has not written yet there is nothing.
        assert forget(stub, engine=engine.name).done
        for target in (pb.TIER_DISK, 77, -1):  # The last two are no tier's numbers.
            prefetch = pb.PrefetchRequest(engine=engine.name, session="chat", target=target)  # type: ignore[arg-type]
            assert refused(lambda prefetch=prefetch: stub.Prefetch(prefetch)) == (  # type: ignore[misc]
                invalid,
                "FIELD_INVALID",
                "target",
            )
        retain = pb.RetainRequest(engine=engine.name, session="chat")
        assert refused(lambda: stub.Retain(retain)) == (invalid, "FIELD_INVALID", "ttl")


def test_bytes_retained_are_those_that_the_budget_has_room_for(make_service: MakeService) -> None:
    service = make_service("--retain-bytes", str(3 * BLOCK_BYTES)).start()
    with attached(service) as (stub, engine):
        fill(engine, 1, range(5))
        keys = [key(number) for number in range(5)]
        request = pb.RetainRequest(engine=engine.name, block_keys=keys, ttl=Duration(seconds=60))
        answer = stub.Retain(request)
        assert (answer.bytes_retained, answer.blocks_retained) == (3 * BLOCK_BYTES, 3)
        engine.step(free(1))
        # Thirty other blocks pass through a pool of 32.
        for number in range(10):
            fill(engine, 2 + number, range(100 + 10 * number, 107 + 10 * number))
            engine.step(free(2 + number))
        assert cached(stub, engine, range(5)).get("gpu", 0) >= 3


def test_the_client_has_them_too(make_stored: Callable[..., Service]) -> None:
    service = make_stored()
    with attached(service) as (stub, engine):
        chat(stub, engine, 1, range(4), "chat")
    with Client(str(service.socket)) as client:
        client.attach(
            Layout(block_tokens=BLOCK_TOKENS, block_bytes=BLOCK_BYTES, fingerprint=layout().fingerprint)
        )
        keys = [key(number) for number in range(4)]
        assert client.prefetch(keys, target=pb.TIER_GPU) == 0  # They are there.
        assert client.retain(session="chat", seconds=30.0, priority=1) == 4 * BLOCK_BYTES
        answer = client.operator.forget(session="chat", seconds=DEADLINE_SECONDS)
        assert (answer.blocks_forgotten, answer.done) == (4, True)
        assert client.lookup(keys).blocks_cached == 0


def run(service: Service, *arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvstore", "forget", "--socket", str(service.socket), *arguments]
    return subprocess.run(command, input=typed, capture_output=True, text=True, timeout=60, check=False)


def test_the_command_asks_first(make_stored: Callable[..., Service]) -> None:
    service = make_stored()
    with attached(service) as (stub, engine):
        chat(stub, engine, 1, range(4), "chat")
        no = run(service, "--session", "chat", typed="n\n")
        assert no.returncode != 0
        assert "session chat" in no.stdout
        assert cached(stub, engine, range(4)) != {}
        yes = run(service, "--session", "chat", "--yes", "--json")
        assert yes.returncode == 0, yes.stderr
        assert json.loads(yes.stdout) == {"blocks_forgotten": 4, "done": True}
        assert cached(stub, engine, range(4)) == {}
        # A slip of the pen must not look like a success.
        again = run(service, "--session", "chat", "--yes")
        assert (again.returncode, again.stdout) == (
            0,
            "0 blocks forgotten: nothing was found in the default tenant (--tenant names another) that is of "
            "this alone; --whole-chain takes what others have used too.\n",
        )
