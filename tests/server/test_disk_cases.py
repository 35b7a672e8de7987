"""The disk tier seen from an engine: rows of groups 4 to 6 that need the whole service (tests/CASES.md)."""

import os
import resource
import signal
import uuid
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from kvstore.v1 import kvstore_pb2 as pb
from kvstore.v1.kvstore_pb2_grpc import KVStoreStub
from tests.server.harness import (
    BLOCK_BYTES,
    BLOCK_TOKENS,
    Engine,
    Service,
    allocate,
    content,
    fill,
    free,
    key,
    refusal,
    tier,
    until,
)

MakeService = Callable[..., Service]
CAP = 16 << 20


@pytest.fixture
def flags(folder: Path) -> tuple[str, ...]:
    return "--disk", str(folder / "disk"), "--disk-bytes", str(CAP)


def finish_turn(stub: KVStoreStub, engine: Engine, sequence: int, keys: range, session: str) -> None:
    """Computes a turn of a session, ends it, and waits until all of it is on disk."""
    before = disk_of(stub).blocks_moved_in
    fill(engine, sequence, keys, session=session)
    engine.step(free(sequence, pb.FreeRequest.SESSION))
    engine.step()
    until(lambda: disk_of(stub).blocks_moved_in, lambda moved: moved >= before + len(keys))


def disk_of(stub: KVStoreStub) -> pb.TierUsage:
    return tier(stub.GetUsage(pb.GetUsageRequest()), pb.TIER_DISK)


def blocks_found(stub: KVStoreStub, engine: Engine, keys: range) -> int:
    request = pb.LookupRequest(engine=engine.name, block_keys=[key(number) for number in keys])
    return int(stub.Lookup(request).blocks_cached)


def frames_used(usage: pb.TierUsage) -> int:
    return usage.frames_total - usage.frames_free


def returned(engine: Engine, sequence: int, keys: range) -> pb.SequenceMoved:
    """Allocates by key what is only below the GPU, and waits until it is there."""
    [result] = engine.step(allocate(sequence, (len(keys) + 1) * BLOCK_TOKENS, keys)).results
    assert result.allocate.state == pb.Sequence.SWAPPING_IN
    response = until(lambda: engine.keep_alive(wait=5), lambda response: bool(response.events.events))
    moved: pb.SequenceMoved = response.events.events[0].sequence_moved
    return moved


def test_case_4_02_after_a_kill_the_disk_is_served_and_old_handles_are_refused(
    make_service: MakeService, flags: tuple[str, ...]
) -> None:
    service = make_service(*flags).start()
    with service.stub() as stub, Engine(stub) as old:
        finish_turn(stub, old, 1, range(6), "chat")
        old.step(allocate(2, 3))
        service.end(signal.SIGKILL)
        service.start()
        with service.stub() as stub_after, Engine(stub_after) as engine:
            assert engine.attached.engine.store_epoch != old.attached.engine.store_epoch
            old.stub = stub_after
            # The name, the sequence and the frames of the service before: none of them means anything now.
            for operation in (allocate(2, 4), free(2)):
                with pytest.raises(grpc.RpcError) as error:
                    old.step(operation)
                assert error.value.code() is grpc.StatusCode.NOT_FOUND
                assert refusal(error.value).reason == "ENGINE_EXPIRED"
            moved = returned(engine, 1, range(6))
            assert moved.valid_tokens == 6 * BLOCK_TOKENS
            assert [engine.read(frame) for frame in moved.block_table[:6]] == [content(n) for n in range(6)]


def test_case_4_08_a_session_that_comes_back_hits_its_whole_length(
    make_service: MakeService, flags: tuple[str, ...]
) -> None:
    """Asserted by the hit, and by the bytes, of the turn after the restart."""
    service = make_service(*flags).start()
    with service.stub() as stub, Engine(stub) as engine:
        finish_turn(stub, engine, 1, range(5), "chat")
        # The second turn goes on where the first one ended: only its own blocks are new.
        [result] = engine.step(allocate(2, 9 * BLOCK_TOKENS + 1, range(9), session="chat")).results
        assert result.allocate.cached_tokens == 5 * BLOCK_TOKENS
    assert service.end() == 0
    service.start()
    with service.stub() as stub, Engine(stub) as engine:
        found = stub.Lookup(pb.LookupRequest(engine=engine.name, block_keys=[key(n) for n in range(9)]))
        assert (found.blocks_cached, dict(found.blocks_by_tier)) == (5, {"disk": 5})
        moved = returned(engine, 1, range(5))
        assert moved.valid_tokens == 5 * BLOCK_TOKENS
        assert [engine.read(frame) for frame in moved.block_table[:5]] == [content(n) for n in range(5)]


def test_case_4_09_all_that_was_kept_of_every_session_is_there_again(
    make_service: MakeService, flags: tuple[str, ...]
) -> None:
    turns = {"a": range(0, 7), "b": range(20, 23), "c": range(40, 51)}
    service = make_service(*flags).start()
    with service.stub() as stub, Engine(stub) as engine:
        for place, (session, keys) in enumerate(turns.items()):
            finish_turn(stub, engine, place + 1, keys, session)
    service.end(signal.SIGKILL)
    service.start()
    with service.stub() as stub, Engine(stub) as engine:
        for keys in turns.values():
            assert blocks_found(stub, engine, keys) == len(keys)
        assert frames_used(disk_of(stub)) == sum(map(len, turns.values()))


def test_case_5_02_a_cap_alone_is_kept_to(make_service: MakeService, folder: Path) -> None:
    """And case 5.04: it is the service's, counted over all files of the folder."""
    cap = 4 << 20
    service = make_service("--disk", str(folder / "disk"), "--disk-bytes", str(cap)).start()
    with service.stub() as stub, Engine(stub) as engine:
        total = disk_of(stub).frames_total
        for turn in range(2 * total // 24 + 1):
            keys = range(100 * turn, 100 * turn + 24)
            finish_turn(stub, engine, 1, keys, f"chat {turn}")
            assert folder_bytes(folder / "disk") <= cap
        assert disk_of(stub).blocks_moved_in > 2 * total - 24
        assert blocks_found(stub, engine, keys) == 24
    assert service.end() == 0
    assert folder_bytes(folder / "disk") <= cap


def folder_bytes(folder: Path) -> int:
    """What the files take, the space behind their ends that was taken for them included."""
    return sum(max(file.stat().st_size, file.stat().st_blocks * 512) for file in folder.iterdir())


def test_case_6_06_with_gpu_and_cpu_lost_the_same_prompt_hits_from_disk(
    make_service: MakeService, flags: tuple[str, ...]
) -> None:
    service = make_service(*flags).start()
    with service.stub() as stub, Engine(stub) as engine:
        finish_turn(stub, engine, 1, range(6), "chat")
        # Enough others to push it out of both tiers above.
        for turn in range(4):
            finish_turn(stub, engine, 2, range(100 * turn + 100, 100 * turn + 124), f"other {turn}")
        found = stub.Lookup(pb.LookupRequest(engine=engine.name, block_keys=[key(n) for n in range(6)]))
        assert dict(found.blocks_by_tier) == {"disk": 6}
        moved = returned(engine, 3, range(6))
        assert moved.valid_tokens == 6 * BLOCK_TOKENS
        assert [engine.read(frame) for frame in moved.block_table[:6]] == [content(n) for n in range(6)]
        assert disk_of(stub).blocks_moved_in >= 6 + 4 * 24


def test_the_folder_of_a_killed_service_needs_no_help(
    make_service: MakeService, flags: tuple[str, ...], folder: Path
) -> None:
    """Killed in the middle of writing, again and again: each time it starts and serves what it has."""
    service = make_service(*flags)
    committed: list[range] = []
    for turn in range(3):
        service.start()
        with service.stub() as stub, Engine(stub) as engine:
            for keys in committed:
                assert blocks_found(stub, engine, keys) == len(keys)
            keys = range(100 * turn, 100 * turn + 8)
            finish_turn(stub, engine, 1, keys, f"chat {turn}")
            committed.append(keys)
            # This one is on its way to disk when the service dies.
            fill(engine, 2, range(100 * turn + 50, 100 * turn + 60), session=f"lost {turn}")
            engine.step(free(2, pb.FreeRequest.SESSION))
            engine.step()
        service.end(signal.SIGKILL)
        assert os.listdir(folder / "disk")


def test_a_burst_larger_than_the_cpu_tier_loses_nothing_in_silence(
    make_service: MakeService, flags: tuple[str, ...]
) -> None:
    """Met elsewhere: 40 stores acknowledged, 26 of 320 chunks findable, and nothing said."""
    service = make_service(*flags, gpu_frames=64, cpu_frames=8).start()
    with service.stub() as stub, Engine(stub) as engine:
        burst = [range(100 * turn, 100 * turn + 8) for turn in range(20)]
        for turn, keys in enumerate(burst):
            fill(engine, turn + 1, keys, session=f"chat {turn}")
            engine.step(free(turn + 1, pb.FreeRequest.SESSION))

        usage = settled(stub, engine)
        found = sum(blocks_found(stub, engine, keys) for keys in burst)
        # What is nowhere had no room or no time on its way down, or failed: and that was counted.
        assert 160 - found <= sum(each.blocks_shed + each.blocks_failed for each in usage.tiers)
        disk = tier(usage, pb.TIER_DISK)
        assert frames_used(disk) == disk.blocks_moved_in > 0
    service.end(signal.SIGKILL)
    service.start()
    with service.stub() as stub, Engine(stub) as engine:
        assert sum(blocks_found(stub, engine, keys) for keys in burst) >= frames_used(disk)


def settled(stub: KVStoreStub, engine: Engine) -> pb.Usage:
    """When nothing is on its way, nor has been for some looks in a row: the store also acts on its own."""

    looks: list[pb.Usage] = []

    def look() -> bool:
        engine.step()
        looks.append(stub.GetUsage(pb.GetUsageRequest()))
        last = [list(usage.tiers) for usage in looks[-20:]]
        pinned = any(each.frames_pinned for each in last[-1])
        return not pinned and len(last) == 20 and all(tiers == last[0] for tiers in last)

    until(look, bool)
    return looks[-1]


def test_case_4_17_a_disk_that_fails_is_nothing_to_the_engine(
    make_service: MakeService, flags: tuple[str, ...]
) -> None:
    """No file of the service may grow any more: what is to be saved isn't, and nobody else notices."""
    service = make_service(*flags).start()
    with service.stub() as stub, Engine(stub) as engine:
        finish_turn(stub, engine, 1, range(6), "chat")
        assert service.process is not None
        resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
        turn = 1
        while not disk_of(stub).degraded:
            keys = range(100 * turn, 100 * turn + 12)
            fill(engine, 2, keys, session=f"lost {turn}")
            engine.step(free(2, pb.FreeRequest.SESSION))
            assert engine.step().step == engine.steps
            turn += 1
            assert turn < 60, "the disk was to fail"
        assert disk_of(stub).degraded_reason
        assert blocks_found(stub, engine, keys) == 12
    assert service.end() == 0


def test_a_layout_is_wiped_for_another_or_refused_and_nothing_is_lost(
    make_service: MakeService, flags: tuple[str, ...]
) -> None:
    """The name of the model is looked at first: with sizes that don't go with it nothing is deleted."""
    service = make_service(*flags).start()
    with service.stub() as stub, Engine(stub) as engine:
        finish_turn(stub, engine, 1, range(8), "chat")
    service.end()
    service = make_service(*flags, "--wipe-incompatible").start()
    with service.stub() as stub:
        with pytest.raises(grpc.RpcError) as refused:
            attach(stub, BLOCK_TOKENS * 2, BLOCK_BYTES)
        assert refusal(refused.value).reason == "LAYOUT_MISMATCH"
        with Engine(stub) as engine:
            assert blocks_found(stub, engine, range(8)) == 8
    service.end()
    service = make_service(*flags, "--wipe-incompatible").start()
    with service.stub() as stub:
        attach(stub, BLOCK_TOKENS, BLOCK_BYTES * 4)
        usage = disk_of(stub)
        assert usage.frames_total > 0
        assert frames_used(usage) == 0
    service.end()
    assert "8 blocks of another layout are deleted" in service.log


def attach(stub: KVStoreStub, block_tokens: int, block_bytes: int) -> None:
    sizes = pb.BlockLayout(block_tokens=block_tokens, block_bytes=block_bytes, ranks=1, fingerprint=b"f" * 32)
    request = pb.AttachRequest(
        request_id=str(uuid.uuid4()), layout=sizes, lease=Duration(seconds=10), build="test"
    )
    stub.Attach(request, timeout=10)
