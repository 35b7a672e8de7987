"""Engines and services that die, stop or fall silent: frames, caches and the disk, in real processes."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import grpc
import pytest

from kvstore.v1 import kvstore_pb2 as pb
from tests.server.harness import (
    BLOCK_TOKENS,
    GPU_FRAMES,
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
from tests.server.refusals import MakeService, refused

ENGINE_SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.server.harness import Engine, Service, fill, allocate
with Service(Path(sys.argv[2])).stub() as stub:
    engine = Engine(stub, lease=60, build="victim")
    fill(engine, 1, range(5))
    engine.step(allocate(2, 30))
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_a_killed_engine_leaves_its_cache_and_frees_its_frames(service: Service) -> None:
    root = str(Path(__file__).resolve().parents[2])
    command = [sys.executable, "-c", ENGINE_SCRIPT, root, str(service.folder)]
    with (
        service.stub() as stub,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as victim,
    ):
        assert victim.stdout is not None
        assert victim.stdout.readline() == b"ready\n"
        [usage] = stub.GetUsage(pb.GetUsageRequest()).engines
        assert (usage.build, list(usage.peer_pids), usage.sequences) == ("victim", [victim.pid], 2)
        victim.kill()
        victim.wait()
        # Its lease is a minute: it is the tether that tells.
        gone = until(lambda: stub.GetUsage(pb.GetUsageRequest()), lambda usage: not usage.engines, seconds=30)
        gpu = tier(gone, pb.TIER_GPU)
        assert gpu.frames_cached == 5
        assert gpu.frames_free + gpu.frames_cached == gpu.frames_total
        with Engine(stub) as engine:
            found = engine.step(allocate(1, 6 * BLOCK_TOKENS, range(5))).results[0].allocate
            assert found.cached_tokens == 5 * BLOCK_TOKENS
            assert [engine.read(frame) for frame in found.block_table[:5]] == [content(n) for n in range(5)]


def test_frames_of_an_expired_engine_stay_until_its_tether_ends(lent: Service) -> None:
    with lent.stub() as stub:
        with Engine(stub, lease=0.5) as engine:
            frames = len(engine.step(allocate(1, 5 * BLOCK_TOKENS)).results[0].allocate.block_table)

            def expired(usage: pb.Usage) -> bool:
                return usage.engines[0].engine.state == pb.Engine.EXPIRED

            usage = until(lambda: stub.GetUsage(pb.GetUsageRequest()), expired)
            assert usage.engines[0].frames_quarantined == frames
            assert list(usage.engines[0].peer_pids) == [os.getpid()]
            assert tier(usage, pb.TIER_GPU).frames_quarantined == frames
            assert refused(engine.step)[1] == "ENGINE_EXPIRED"
        usage = until(lambda: stub.GetUsage(pb.GetUsageRequest()), lambda usage: not usage.engines)
        gpu = tier(usage, pb.TIER_GPU)
        assert (gpu.frames_quarantined, gpu.frames_free) == (0, gpu.frames_total)


def test_an_attach_that_quarantine_bars_names_the_process(lent: Service) -> None:
    with lent.stub() as stub, Engine(stub, lease=0.5) as engine:
        engine.step(allocate(1, GPU_FRAMES * BLOCK_TOKENS))
        request = pb.AttachRequest(request_id=str(uuid.uuid4()), layout=layout())
        until(
            lambda: stub.GetUsage(pb.GetUsageRequest()), lambda usage: usage.engines[0].frames_quarantined > 0
        )
        with pytest.raises(grpc.RpcError) as error:
            stub.Attach(request)
        assert refusal(error.value).reason == "POOL_QUARANTINED"
        assert str(os.getpid()) in (error.value.details() or "")
        engine.close()
        until(lambda: stub.GetUsage(pb.GetUsageRequest()), lambda usage: not usage.engines)
        attached = stub.Attach(request)
        stub.Detach(pb.DetachRequest(name=attached.engine.name))


def test_a_stopped_service_takes_nobody_for_dead(service: Service) -> None:
    with service.stub() as stub, Engine(stub, lease=2.5) as engine:
        service.send(signal.SIGSTOP)
        # The time itself is what is tested: longer than the lease.
        threading.Event().wait(3.0)
        service.send(signal.SIGCONT)
        engine.step(allocate(1, 3))


def test_a_killed_service_is_missed_at_once_and_its_disk_is_served_again(
    make_service: MakeService, folder: Path
) -> None:
    flags = ("--disk", str(folder / "disk"), "--disk-bytes", "16MiB")
    service = make_service(*flags).start()
    with service.stub() as stub, Engine(stub) as engine:
        epoch = engine.attached.engine.store_epoch
        fill(engine, 1, range(6), session="chat")
        engine.step(free(1, pb.FreeRequest.SESSION))
        engine.step()

        def on_disk(usage: pb.Usage) -> bool:
            return tier(usage, pb.TIER_DISK).blocks_moved_in == 6

        until(lambda: stub.GetUsage(pb.GetUsageRequest()), on_disk)
        service.end(signal.SIGKILL)
        begin = time.monotonic()
        with pytest.raises(grpc.RpcError) as error:
            engine.step()
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
        assert engine.tether.recv(1) == b""
        assert time.monotonic() - begin < 10.0
    # Not even under another name than what tests make there for themselves.
    assert not [name for name in os.listdir("/dev/shm") if "kvstore" in name and "test" not in name]
    service.start()
    with service.stub() as stub, Engine(stub) as engine:
        assert engine.attached.engine.store_epoch != epoch
        request = pb.LookupRequest(engine=engine.name, block_keys=[key(number) for number in range(6)])
        assert dict(stub.Lookup(request).blocks_by_tier) == {"disk": 6}
        allocated = engine.step(allocate(1, 7 * BLOCK_TOKENS, range(6))).results[0].allocate
        assert (allocated.state, allocated.disk_tokens) == (pb.Sequence.SWAPPING_IN, 6 * BLOCK_TOKENS)
        response = until(lambda: engine.keep_alive(wait=5), lambda response: bool(response.events.events))
        moved = response.events.events[0].sequence_moved
        assert (moved.state, moved.valid_tokens) == (pb.Sequence.RESIDENT, 6 * BLOCK_TOKENS)
        assert [engine.read(frame) for frame in moved.block_table[:6]] == [content(n) for n in range(6)]
    assert service.end() == 0
    assert sorted(os.listdir(folder)) == ["disk", "log"]


def test_case_4_11_a_wrong_byte_on_disk_is_never_served(make_service: MakeService, folder: Path) -> None:
    flags = ("--disk", str(folder / "disk"), "--disk-bytes", "16MiB")
    service = make_service(*flags).start()
    with service.stub() as stub, Engine(stub) as engine:
        fill(engine, 1, range(3), session="chat")
        engine.step(free(1, pb.FreeRequest.SESSION))
        engine.step()
        until(
            lambda: tier(stub.GetUsage(pb.GetUsageRequest()), pb.TIER_DISK).blocks_moved_in, lambda n: n == 3
        )
    assert service.end() == 0
    data = folder / "disk" / "segment-000000"
    raw = bytearray(data.read_bytes())
    raw[raw.index(content(1)) + 100] ^= 1
    data.write_bytes(raw)
    service.start()
    with service.stub() as stub, Engine(stub) as engine:
        engine.step(allocate(1, 4 * BLOCK_TOKENS, range(3)))
        response = until(lambda: engine.keep_alive(wait=5), lambda response: bool(response.events.events))
        moved = response.events.events[0].sequence_moved
        # The block in the middle is wrong: only what comes before it counts.
        assert (moved.state, moved.valid_tokens) == (pb.Sequence.RESIDENT, BLOCK_TOKENS)
        assert engine.read(moved.block_table[0]) == content(0)


def test_an_engine_that_half_closes_its_tether_keeps_its_frames(lent: Service) -> None:
    with lent.stub() as stub, Engine(stub, lease=0.3) as engine:
        engine.step(allocate(1, 4))
        engine.tether.shutdown(socket.SHUT_WR)

        def told() -> tuple[int, int]:
            [each] = stub.GetUsage(pb.GetUsageRequest()).engines
            return each.engine.state, each.frames_quarantined

        # Its lease ends, but not its mapping: the frame is held back until the tether really ends.
        until(told, lambda state: state == (pb.Engine.EXPIRED, 1))
        time.sleep(0.6)
        assert told() == (pb.Engine.EXPIRED, 1)
        engine.tether.close()
        until(lambda: len(stub.GetUsage(pb.GetUsageRequest()).engines), lambda count: count == 0)
