"""The real server in its own process: what an engine sees of it."""

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from kvstore.client.errors import Unanswered
from kvstore.client.statuses import from_rpc
from kvstore.v1 import kvstore_pb2 as pb
from tests.server.harness import (
    BLOCK_BYTES,
    BLOCK_TOKENS,
    DEADLINE_SECONDS,
    GPU_FRAMES,
    Engine,
    Service,
    TetherRefused,
    allocate,
    content,
    fill,
    free,
    key,
    layout,
    open_tether,
    refusal,
    tier,
    until,
)

MakeService = Callable[..., Service]


def refused(call: Callable[[], object]) -> tuple[grpc.StatusCode, str, str]:
    """Code, reason and field of the refusal that a call must end in."""
    with pytest.raises(grpc.RpcError) as error:
        call()
    info = refusal(error.value)
    return error.value.code(), info.reason, info.metadata.get("field", "")


# -------------------------------------------------------------------------- one engine


def test_bytes_written_through_the_map_are_found_by_key(service: Service) -> None:
    with service.stub() as stub, Engine(stub) as engine:
        [handle] = engine.attached.pools
        assert (handle.tier, handle.frame_count, handle.frame_stride_bytes) == (pb.TIER_GPU, GPU_FRAMES, 8192)
        table = fill(engine, 1, range(3))
        engine.step(free(1))
        engine.step()
        found = stub.Lookup(
            pb.LookupRequest(engine=engine.name, block_keys=[key(number) for number in range(5)])
        )
        assert (found.blocks_cached, dict(found.blocks_by_tier)) == (3, {"gpu": 3})
        response = engine.step(allocate(2, 5 * BLOCK_TOKENS, range(4)))
        allocated = response.results[0].allocate
        assert (allocated.outcome, allocated.cached_tokens) == (pb.OUTCOME_OK, 3 * BLOCK_TOKENS)
        assert (allocated.gpu_tokens, allocated.state) == (3 * BLOCK_TOKENS, pb.Sequence.RESIDENT)
        assert list(allocated.block_table[:3]) == table[:3]
        assert [engine.read(frame) for frame in allocated.block_table[:3]] == [content(n) for n in range(3)]
        lease = response.lease_expire_time.ToNanoseconds() / 1e9 - time.time()
        assert 0 < lease <= 10


def test_the_verbs_exist_alone_too(service: Service) -> None:
    with service.stub() as stub, Engine(stub) as engine:
        name = engine.name
        first = stub.Allocate(pb.AllocateRequest(engine=name, sequence=1, token_count=6))
        assert (first.outcome, len(first.block_table)) == (pb.OUTCOME_OK, 2)
        stub.Commit(pb.CommitRequest(engine=name, sequence=1, block_keys=[key(1)]))
        assert stub.Fork(pb.ForkRequest(engine=name, parent=1, children=[2])).outcome == pb.OUTCOME_OK
        # Both write into the part-filled block next: the first to ask gets a copy of its own.
        grown = stub.Allocate(pb.AllocateRequest(engine=name, sequence=2, token_count=7))
        assert [copy.source for copy in grown.copies] == [first.block_table[1]]
        swapped = stub.Swap(
            pb.SwapRequest(
                engine=name,
                sequence=2,
                direction=pb.SwapRequest.OUT,
                mode=pb.SwapRequest.DROP,
                filled_tokens=4,
            )
        )
        assert (swapped.outcome, swapped.state) == (pb.OUTCOME_OK, pb.Sequence.DROPPED)
        assert swapped.decision.chosen
        stub.Free(pb.FreeRequest(engine=name, sequences=[1, 2, 99]))
        assert stub.Lookup(pb.LookupRequest(engine=name, block_keys=[key(1)])).blocks_cached == 1
        assert refused(lambda: engine.step())[1] == "STEP_MIXED"
        stub.Detach(pb.DetachRequest(name=name))
        stub.Detach(pb.DetachRequest(name=name))
        assert list(stub.GetUsage(pb.GetUsageRequest()).engines) == []


def test_a_refusal_of_a_verb_names_its_own_field(service: Service) -> None:
    with service.stub() as stub, Engine(stub) as engine:
        call = refused(lambda: stub.Allocate(pb.AllocateRequest(engine=engine.name, sequence=1)))
        assert call == (grpc.StatusCode.INVALID_ARGUMENT, "FIELD_INVALID", "token_count")


def test_refusals_change_nothing_and_say_what_was_wrong(service: Service) -> None:
    with service.stub() as stub, Engine(stub) as engine:
        engine.step(allocate(1, 3))

        def step(number: int, *operations: pb.Operation) -> pb.StepResponse:
            request = pb.StepRequest(
                engine=engine.name, step=number, completed_step=number - 1, operations=operations
            )
            return stub.Step(request)

        field = pb.Operation(commit=pb.CommitRequest(sequence=1, block_keys=[b"short"]))
        unknown = pb.Operation(swap=pb.SwapRequest(sequence=7, direction=pb.SwapRequest.OUT))
        foreign = allocate(2, 3, tenant="somebody")
        assert refused(lambda: step(3))[:2] == (grpc.StatusCode.FAILED_PRECONDITION, "STEP_GAP")
        assert refused(lambda: step(1, allocate(1, 4)))[:2] == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "STEP_CHANGED",
        )
        assert refused(lambda: step(2, field)) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "FIELD_INVALID",
            "operations[0].commit.block_keys[0]",
        )
        assert refused(lambda: step(2, unknown)) == (
            grpc.StatusCode.NOT_FOUND,
            "SEQUENCE_UNKNOWN",
            "operations[0].swap.sequence",
        )
        assert refused(lambda: step(2, foreign))[:2] == (grpc.StatusCode.PERMISSION_DENIED, "TENANT")
        assert (
            refused(lambda: stub.Free(pb.FreeRequest(engine=engine.name, sequences=[1])))[1] == "STEP_MIXED"
        )
        assert step(1, allocate(1, 3)).step == 1
        assert step(2, allocate(1, 4)).results[0].allocate.outcome == pb.OUTCOME_OK


def test_case_5_19_an_oversized_message_is_refused_in_our_words(service: Service) -> None:
    with service.stub() as stub, Engine(stub) as engine:
        request = pb.LookupRequest(engine=engine.name, block_keys=[b"k" * 32] * (2**21))
        assert refused(lambda: stub.Lookup(request)) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "FIELD_INVALID",
            "request",
        )


# ------------------------------------------------------------------------------ attach


def test_before_the_first_attach_there_are_tiers_without_frames(service: Service) -> None:
    with service.stub() as stub:
        usage = stub.GetUsage(pb.GetUsageRequest())
        assert [(each.tier, each.frames_total) for each in usage.tiers] == [
            (pb.TIER_GPU, 0),
            (pb.TIER_CPU, 0),
        ]
        assert usage.store_epoch != 0
        name = f"engines/{uuid.uuid4()}"
        expired = (grpc.StatusCode.NOT_FOUND, "ENGINE_EXPIRED")
        assert refused(lambda: stub.Step(pb.StepRequest(engine=name, step=1)))[:2] == expired
        assert refused(lambda: stub.KeepAlive(pb.KeepAliveRequest(name=name)))[:2] == expired
        stub.Detach(pb.DetachRequest(name=name))


def test_a_retried_attach_is_the_same_engine_with_new_secrets(service: Service) -> None:
    with service.stub() as stub:
        request = pb.AttachRequest(request_id=str(uuid.uuid4()), layout=layout(ranks=2))
        first, second = stub.Attach(request), stub.Attach(request)
        assert first.engine.name == second.engine.name
        assert len(second.fd_secrets) == len(second.pools) == 2
        assert not set(first.fd_secrets) & set(second.fd_secrets)
        with pytest.raises(TetherRefused):
            open_tether(first.fd_socket_path, first.fd_secrets[0])
        tethers = [open_tether(second.fd_socket_path, secret) for secret in second.fd_secrets]
        [engine] = stub.GetUsage(pb.GetUsageRequest()).engines
        assert list(engine.peer_pids) == [os.getpid()] * 2
        for tether, fd in tethers:
            os.close(fd)
            tether.close()
        until(lambda: stub.GetUsage(pb.GetUsageRequest()), lambda usage: not usage.engines)


def test_layouts_that_cannot_be_served_are_refused(service: Service) -> None:
    with service.stub() as stub:

        def attach(**sizes: int) -> pb.AttachResponse:
            return stub.Attach(pb.AttachRequest(request_id=str(uuid.uuid4()), layout=layout(**sizes)))

        huge = refused(lambda: attach(block_bytes=2**20))
        assert huge == (grpc.StatusCode.INVALID_ARGUMENT, "FIELD_INVALID", "layout.block_bytes")
        attach()
        mismatch = refused(lambda: attach(block_bytes=BLOCK_BYTES + 1))
        assert mismatch[:2] == (grpc.StatusCode.FAILED_PRECONDITION, "LAYOUT_MISMATCH")


def test_engines_have_a_bound(make_service: MakeService) -> None:
    with make_service("--engines-max", "1").start().stub() as stub, Engine(stub) as engine:
        request = pb.AttachRequest(request_id=str(uuid.uuid4()), layout=layout())
        too_many = (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_ENGINES")
        assert refused(lambda: stub.Attach(request))[:2] == too_many
        engine.step()
        stub.Detach(pb.DetachRequest(name=engine.name))
        stub.Attach(request)


def test_a_secret_dies_with_its_engine(service: Service) -> None:
    with service.stub() as stub:
        attached = stub.Attach(pb.AttachRequest(request_id=str(uuid.uuid4()), layout=layout()))
        stub.Detach(pb.DetachRequest(name=attached.engine.name))
        with pytest.raises(TetherRefused):
            open_tether(attached.fd_socket_path, attached.fd_secrets[0])


# ------------------------------------------------------------------------- KeepAlive


def test_a_waiting_keep_alive_is_woken_by_an_event(service: Service) -> None:
    with service.stub() as stub, service.stub() as other, Engine(stub) as engine, Engine(other) as second:
        call = stub.KeepAlive.future(engine.keep_alive_request(wait=30), timeout=60)
        # More than the high watermark in use: told to all.
        second.step(allocate(1, GPU_FRAMES * BLOCK_TOKENS))
        response = call.result(timeout=4)
        [event] = response.events.events
        assert event.pressure_changed.tier == pb.TIER_GPU
        # Told again until it is said to be seen.
        assert engine.keep_alive(seen=0).events.events == response.events.events
        assert not engine.keep_alive(seen=event.revision).events.events


def test_a_swap_is_told_when_it_has_ended(service: Service) -> None:
    with service.stub() as stub, Engine(stub) as engine:
        tokens = 20 * BLOCK_TOKENS
        engine.step(allocate(1, tokens))
        out = pb.SwapRequest(
            sequence=1, direction=pb.SwapRequest.OUT, mode=pb.SwapRequest.KEEP, filled_tokens=tokens
        )
        assert engine.step(pb.Operation(swap=out)).results[0].swap.state == pb.Sequence.SWAPPING_OUT
        response = until(lambda: engine.keep_alive(wait=5), lambda response: bool(response.events.events))
        moved = response.events.events[0].sequence_moved
        assert (moved.engine, moved.sequence, moved.state) == (engine.name, 1, pb.Sequence.SWAPPED)


def test_waiting_keep_alives_do_not_bar_other_calls(service: Service) -> None:
    with service.stub() as stub, Engine(stub) as engine:
        calls = [stub.KeepAlive.future(engine.keep_alive_request(wait=30), timeout=60) for _ in range(200)]
        begin = time.monotonic()
        engine.step(allocate(1, 5), completed=0)
        engine.step(free(1), completed=0)
        assert time.monotonic() - begin < 2.0
        # A few wait on, the others were answered to make place; all end with the engine.
        stub.Detach(pb.DetachRequest(name=engine.name))
        for call in calls:
            error = call.exception(timeout=DEADLINE_SECONDS)
            assert error is None or (
                isinstance(error, grpc.RpcError) and refusal(error).reason == "ENGINE_EXPIRED"
            )


# ---------------------------------------------------------------- deaths and leases


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
        gone = until(lambda: stub.GetUsage(pb.GetUsageRequest()), lambda usage: not usage.engines, seconds=5)
        gpu = tier(gone, pb.TIER_GPU)
        assert gpu.frames_cached == 5
        assert gpu.frames_free + gpu.frames_cached == gpu.frames_total
        with Engine(stub) as engine:
            found = engine.step(allocate(1, 6 * BLOCK_TOKENS, range(5))).results[0].allocate
            assert found.cached_tokens == 5 * BLOCK_TOKENS
            assert [engine.read(frame) for frame in found.block_table[:5]] == [content(n) for n in range(5)]


def test_frames_of_an_expired_engine_stay_until_its_tether_ends(service: Service) -> None:
    with service.stub() as stub:
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


def test_an_attach_that_quarantine_bars_names_the_process(service: Service) -> None:
    with service.stub() as stub, Engine(stub, lease=0.5) as engine:
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
        stub.Attach(request)


def test_a_stopped_service_takes_nobody_for_dead(service: Service) -> None:
    with service.stub() as stub, Engine(stub, lease=1.0) as engine:
        service.send(signal.SIGSTOP)
        # The time itself is what is tested: three leases long.
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
        assert time.monotonic() - begin < 2.0
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


# ------------------------------------------------------------------- start and stop


def test_sockets_are_private_and_go_with_a_clean_stop(service: Service) -> None:
    modes = {path.name: path.stat().st_mode for path in service.folder.iterdir() if path.name != "log"}
    assert sorted(modes) == ["k.sock", "k.sock.fds"]
    assert all(stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600 for mode in modes.values())
    with service.stub() as stub, Engine(stub) as engine:
        call = stub.KeepAlive.future(engine.keep_alive_request(wait=30), timeout=60)
        assert service.end() == 0
        # Answered, or, where it came too late to be taken in, told so: the client tries such a call again.
        error = call.exception(timeout=5)
        if error is not None:
            assert isinstance(error, grpc.RpcError)
            assert isinstance(from_rpc(error, ""), Unanswered)
        assert engine.tether.recv(1) == b""
    assert [path.name for path in service.folder.iterdir()] == ["log"]


def test_ctrl_c_is_a_clean_stop_too(service: Service) -> None:
    assert service.end(signal.SIGINT) == 0


def test_a_killed_service_leaves_dead_sockets_that_its_successor_removes(service: Service) -> None:
    for _ in range(3):
        service.end(signal.SIGKILL)
        assert (service.folder / "k.sock").exists()
        service.start()
        with service.stub() as stub:
            stub.GetUsage(pb.GetUsageRequest())
    assert service.end() == 0
    assert [path.name for path in service.folder.iterdir()] == ["log"]


def run(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "kvstore", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS)


def serve(folder: Path, name: str, *flags: str) -> str:
    """The one line that a start which must fail says."""
    sizes = ("--gpu", "1MiB", "--cpu", "1MiB")
    done = run("serve", "--socket", str(folder / name), *sizes, *flags)
    assert done.returncode == 2, done.stderr
    [line] = done.stderr.splitlines()
    return line


def test_a_second_service_is_refused(make_service: MakeService, folder: Path) -> None:
    disk = ("--disk", str(folder / "disk"), "--disk-bytes", "16MiB")
    service = make_service(*disk).start()
    assert "already" in serve(folder, "k.sock")
    assert "in use" in serve(folder, "other.sock", *disk)
    assert sorted(os.listdir(folder)) == ["disk", "k.sock", "k.sock.fds", "log"]
    with service.stub() as stub:
        stub.GetUsage(pb.GetUsageRequest())


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--gpu", "5 bananas"), ["--gpu", "bananas", "GiB"]),
        (("--gpu", "500TiB"), ["--gpu", "500 TiB"]),
        (("--lease", "nan"), ["--lease", "nan"]),
        (("--socket", "/"), ["--socket", "names no file"]),
        (("--socket", "/tmp/a%41.sock"), ["--socket", "a%41.sock"]),
        (("--socket", "unix://rel/x"), ["--socket", "unix://rel/x"]),
        (("--socket", os.fsdecode(b"/tmp/\xff.sock")), ["--socket", "UTF-8"]),
        (("--tenant", os.fsdecode(b"\xff")), ["--tenant"]),
        (("--socket", "localhost:1234"), ["--socket", "localhost:1234", "unix:"]),
        (("--disk", "/dev/null/x", "--disk-bytes", "1GiB"), ["/dev/null/x"]),
    ],
)
def test_bad_flags_end_in_one_line(folder: Path, flags: tuple[str, ...], words: list[str]) -> None:
    line = serve(folder, "k.sock", *flags)
    assert all(word in line for word in words), line
    assert os.listdir(folder) == []


def test_status_shows_tiers_and_engines(service: Service) -> None:
    with service.stub() as stub, Engine(stub, build="[bold]tiny") as engine:
        done = run("status", "--socket", str(service.socket))
        assert done.returncode == 0
        words = ("GPU", "CPU", "attached", "[bold]tiny", str(os.getpid()))
        assert [word for word in words if word not in done.stdout] == [], done.stdout
        done = run("status", "--socket", f"unix:{service.socket}", "--json")
        assert f'"name": "{engine.name}"' in done.stdout


def test_status_without_a_service_is_one_line(folder: Path) -> None:
    done = run("status", "--socket", str(folder / "none.sock"))
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "none.sock" in done.stderr


def test_every_method_refuses_bytes_that_are_no_message_without_a_word_in_the_log(service: Service) -> None:
    contract = pb.DESCRIPTOR.services_by_name["KVStore"]
    with grpc.insecure_channel(f"unix:{service.socket}") as channel:
        for method in contract.methods:
            call = channel.stream_stream(f"/{contract.full_name}/{method.name}", bytes, bytes)
            with pytest.raises(grpc.RpcError) as error:
                next(call(iter([b"\xff\xff\xff"]), timeout=DEADLINE_SECONDS))
            assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT, method.name
            told = refusal(error.value)
            assert (told.reason, told.metadata["field"]) == ("FIELD_INVALID", "request"), method.name
    assert service.end() == 0
    assert "WARNING" not in service.log
    assert "Traceback" not in service.log


def test_an_engine_that_half_closes_its_tether_keeps_its_frames(service: Service) -> None:
    with service.stub() as stub, Engine(stub, lease=0.3) as engine:
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
        until(lambda: len(stub.GetUsage(pb.GetUsageRequest()).engines), lambda count: count == 0, 1.0)
