"""WatchEvents of a real service: what one sees who watches, and who may."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from kvstore.core.answers import StepAnswer
from kvstore.core.errors import EngineExpired
from kvstore.core.notices import BlocksStored
from kvstore.core.operations import Allocate
from kvstore.core.types import BlockKey, NamespaceId, Revision, TenantId, Tier
from kvstore.server import events as events_module
from kvstore.server import watching
from kvstore.server.calls import Streams
from kvstore.server.decode import WatchCall
from kvstore.server.driver import Driver
from kvstore.server.events import WATCHERS_MAX
from kvstore.server.service import make_server
from kvstore.v1 import kvstore_pb2 as pb
from kvstore.v1.kvstore_pb2_grpc import KVStoreStub
from tests.server.driving import Stopped, attach, config_for, finish_turn, run, step
from tests.server.harness import (
    BLOCK_TOKENS,
    GPU_FRAMES,
    Engine,
    Service,
    allocate,
    fill,
    free,
    refusal,
    until,
)
from tests.server.watcher import Watcher, keys, watching_all

MakeService = Callable[..., Service]


def test_one_who_watches_from_before_the_first_attach_has_the_index_by_tier(
    make_service: MakeService, folder: Path
) -> None:
    """And after a restart: what was found on disk is told as well."""
    flags = ("--disk", str(folder / "disk"), "--disk-bytes", "16MiB", "--tenant", "a", "--tenant", "b")
    service = make_service(*flags).start()
    with watching_all(service) as watcher, service.stub() as stub, Engine(stub) as engine:
        assert (watcher.first.revision, list(watcher.first.events)) == (0, [])
        assert watcher.first.store_epoch == engine.attached.engine.store_epoch
        fill(engine, 1, range(3), session="chat")
        engine.step(free(1, pb.FreeRequest.SESSION))
        engine.step()
        watcher.take_until(lambda each: len(each.index[pb.TIER_DISK]) == 3)
        assert watcher.index == {tier: keys(range(3)) for tier in watcher.index}
        [first, *_] = [event.blocks_stored for event in watcher.events if event.HasField("blocks_stored")]
        assert (first.fingerprint, first.tenant, first.tier) == (b"f" * 32, "a", pb.TIER_GPU)
        # Another's work takes the whole GPU tier.
        engine.step(allocate(2, GPU_FRAMES * BLOCK_TOKENS))
        watcher.take_until(lambda each: not each.index[pb.TIER_GPU])
        watcher.take_until(lambda each: "pressure_changed" in each.kinds())
        engine.step(free(2))
    other_epoch = {"start_revision": 1, "store_epoch": watcher.first.store_epoch + 1}
    with pytest.raises(grpc.RpcError) as error, watching_all(service, **other_epoch):
        pass
    assert (error.value.code(), refusal(error.value).reason) == (
        grpc.StatusCode.OUT_OF_RANGE,
        "REVISION_COMPACTED",
    )
    assert service.end() == 0
    service.start()
    with watching_all(service) as watcher, service.stub() as stub, Engine(stub):
        watcher.take_until(lambda each: each.index[pb.TIER_DISK] == keys(range(3)))


def test_moves_and_ends_are_told_and_one_who_comes_back_has_missed_nothing(service: Service) -> None:
    with service.stub() as stub:
        with Engine(stub) as engine:
            tokens = 20 * BLOCK_TOKENS
            with watching_all(service) as watcher:
                engine.step(allocate(1, tokens))
                out = pb.SwapRequest(
                    sequence=1, direction=pb.SwapRequest.OUT, mode=pb.SwapRequest.KEEP, filled_tokens=tokens
                )
                engine.step(pb.Operation(swap=out))
                watcher.take_until(lambda each: "sequence_moved" in each.kinds())
                [moved] = [each.sequence_moved for each in watcher.events if each.HasField("sequence_moved")]
                assert (moved.engine, moved.sequence, moved.state) == (engine.name, 1, pb.Sequence.SWAPPED)
                seen = watcher.revision
            back = pb.SwapRequest(sequence=1, direction=pb.SwapRequest.IN)
            engine.step(pb.Operation(swap=back))
            until(
                lambda: stub.GetSequence(pb.GetSequenceRequest(engine=engine.name, sequence=1)).state,
                lambda state: state == pb.Sequence.RESIDENT,
            )
        epoch = engine.attached.engine.store_epoch
        with watching_all(service, start_revision=seen + 1, store_epoch=epoch) as watcher:
            assert watcher.first.revision == seen
            watcher.take_until(lambda each: "engine_expired" in each.kinds())
            assert watcher.kinds().index("sequence_moved") < watcher.kinds().index("engine_expired")
            assert watcher.events[-1].engine_expired.engine == engine.name


def test_one_engine_alone_can_be_watched(service: Service) -> None:
    with service.stub() as stub, Engine(stub) as engine, service.stub() as other, Engine(other) as second:
        call = stub.WatchEvents(pb.WatchEventsRequest(engine=second.name), timeout=60)
        next(call)
        fill(engine, 1, range(3))
        # Above the high watermark: told to all.
        second.step(allocate(1, (GPU_FRAMES - 4) * BLOCK_TOKENS))
        told: list[pb.Event] = []
        while not told:
            told += next(call).events
        second.close()
        while not told[-1].HasField("engine_expired"):
            told += next(call).events
        assert {event.WhichOneof("kind") for event in told} == {"pressure_changed", "engine_expired"}
        assert told[-1].engine_expired.engine == second.name
        call.cancel()


def test_an_engine_that_is_not_there_is_not_watched(service: Service) -> None:
    name = "engines/01234567-89ab-4cde-8f01-23456789abcd"
    with service.stub() as stub:
        for attached in (False, True):
            if attached:
                stub.Attach(pb.AttachRequest(request_id=name[8:], layout=LAYOUT))
            with pytest.raises(grpc.RpcError) as error:
                next(stub.WatchEvents(pb.WatchEventsRequest(engine=name), timeout=20))
            assert (error.value.code(), refusal(error.value).reason) == (
                grpc.StatusCode.NOT_FOUND,
                "ENGINE_EXPIRED",
            )
        with pytest.raises(grpc.RpcError) as error:
            next(stub.WatchEvents(pb.WatchEventsRequest(engine="engines/nobody"), timeout=20))
        assert refusal(error.value).metadata["field"] == "engine"


LAYOUT = pb.BlockLayout(block_tokens=4, block_bytes=6000, ranks=1, fingerprint=b"f" * 32)


def test_revisions_that_are_not_here_are_refused(shared: Service) -> None:
    with shared.stub() as stub:
        for start in (2, 2**64 - 1):
            with pytest.raises(grpc.RpcError) as error:
                next(stub.WatchEvents(pb.WatchEventsRequest(start_revision=start), timeout=20))
            info = refusal(error.value)
            assert (error.value.code(), info.reason, info.metadata["field"]) == (
                grpc.StatusCode.OUT_OF_RANGE,
                "REVISION_COMPACTED",
                "start_revision",
            )


def test_those_who_watch_have_a_bound_and_a_stop_ends_them(service: Service) -> None:
    with service.stub() as stub:
        watchers = [Watcher(stub) for _ in range(WATCHERS_MAX)]
        with pytest.raises(grpc.RpcError) as error:
            Watcher(stub)
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert refusal(error.value).reason == "TOO_MANY_STREAMS"
        watchers.pop().call.cancel()
        # The service hears of it when it does.
        until(lambda: _can_watch(stub), bool)
        with Engine(stub) as engine:
            engine.step(allocate(1, BLOCK_TOKENS))
        assert service.end() == 0
        for watcher in watchers:
            with pytest.raises(grpc.RpcError) as error:
                watcher.take_until(lambda _: False)
            assert error.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "Traceback" not in service.log


def _can_watch(stub: KVStoreStub) -> bool:
    call = stub.WatchEvents(pb.WatchEventsRequest(), timeout=20)
    try:
        next(call)
    except grpc.RpcError:
        return False
    call.cancel()
    return True


# ------------------------------------------------------------------ without a process between


def test_one_who_does_not_read_is_told_so_when_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Far more is told meanwhile than the connection takes, and than the ring holds."""
    monkeypatch.setattr(events_module, "EVENTS_MAX", 10)

    def stored(revision: int) -> BlocksStored:
        names = tuple(BlockKey(revision.to_bytes(32)) for _ in range(4_096))
        return BlocksStored(
            revision=Revision(revision),
            tier=Tier.GPU,
            namespace=NamespaceId(1),
            tenant=TenantId(1),
            keys=names,
        )

    async def scenario(driver: Driver, stopped: Stopped) -> None:
        server = make_server(driver, tmp_path / "tether", Streams())
        server.add_insecure_port(f"unix:{tmp_path}/k.sock")
        await server.start()
        async with grpc.aio.insecure_channel(f"unix:{tmp_path}/k.sock") as channel:
            call = KVStoreStub(channel).WatchEvents(pb.WatchEventsRequest())
            assert (await anext(aiter(call))).revision == 0
            for revision in range(1, 301):
                driver._parts.watching.events.add([stored(revision)])
                await asyncio.sleep(0)
            with pytest.raises(grpc.aio.AioRpcError) as error:
                [None async for _ in call]
            assert error.value.code() is grpc.StatusCode.OUT_OF_RANGE
        await server.stop(None)

    run(scenario, config_for(tmp_path))


def call_of(start: int = 0, engine: str = "") -> WatchCall:
    return WatchCall(engine=engine, start_revision=start, store_epoch=0)  # type: ignore[arg-type]


def test_the_store_tells_as_long_as_somebody_watches_and_a_while_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "LINGER_SECONDS", 0.0)

    async def scenario(driver: Driver, stopped: Stopped) -> None:
        engine = (await attach(driver)).answer.engine
        told: list[bool] = []

        def is_told() -> bool:
            return driver._parts.watching.events.is_on

        assert not is_told()
        first = driver.watch(call_of())
        revision, _ = await anext(first)
        second = driver.watch(call_of())
        await anext(second)
        await first.aclose()
        await asyncio.sleep(0.01)
        assert is_told()
        finish_turn(driver, engine, 0)
        revision, happened = await anext(second)
        assert happened
        await second.aclose()
        while is_told():
            told.append(True)
            await asyncio.sleep(0.001)
        finish_turn(driver, engine, 1)
        # What was not told since is missed, and that is said.
        with pytest.raises(Exception, match="no events are kept now"):
            await anext(driver.watch(call_of(revision + 1)))
        with pytest.raises(EngineExpired):
            await anext(driver.watch(call_of(0, "nobody")))

    run(scenario, config_for(tmp_path))


def test_to_watch_an_engine_renews_its_lease(tmp_path: Path) -> None:
    async def scenario(driver: Driver, stopped: Stopped) -> None:
        engine = (await attach(driver)).answer.engine
        driver.ask(step(engine, 1, Allocate(sequence=1, token_count=4)), StepAnswer)  # type: ignore[arg-type]
        [before] = driver.reports.usage().engines
        await asyncio.sleep(0.01)
        watcher = driver.watch(call_of(0, engine))
        await anext(watcher)
        [after] = driver.reports.usage().engines
        assert after.lease_expire_time > before.lease_expire_time
        await watcher.aclose()

    run(scenario, config_for(tmp_path))
