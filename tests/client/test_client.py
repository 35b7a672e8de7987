"""The client against a fake service: mapping, exactly-once steps, leases, loss and return, forks."""

import asyncio
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest

from kvstore.client import (
    Client,
    ClientError,
    Layout,
    PendingStep,
    Refused,
    ServiceLost,
    default_address,
    map_shared_rank,
    operations,
)
from kvstore.client.address import to_address
from kvstore.v1 import kvstore_pb2 as pb
from tests.client.fake import BLOCK_BYTES, BLOCK_TOKENS, FRAMES, STRIDE, FakeService

LOST_SECONDS = 2.0  # The contract's bound.


def layout(ranks: int = 1) -> Layout:
    return Layout(block_tokens=BLOCK_TOKENS, block_bytes=BLOCK_BYTES, ranks=ranks, fingerprint=bytes(32))


@pytest.fixture(autouse=True)
def nothing_of_the_client_is_left() -> Iterator[None]:
    """The fixture for all tests looks neither at daemon threads, as keep-alive is one, nor at mappings."""
    yield
    assert keep_alive_threads() == []
    assert wait_until(lambda: senders() == [])
    assert "memfd:kvstore-fake" not in Path("/proc/self/maps").read_text()


@pytest.fixture
def fake(tmp_path) -> Iterator[FakeService]:
    service = FakeService(tmp_path)
    yield service
    service.stop()


@pytest.fixture
def client(fake) -> Iterator[Client]:
    with Client(fake.address) as made:
        made.attach(layout())
        yield made


def senders() -> list[threading.Thread]:
    """gRPC's, one a stream: they wait in our code for the next step."""
    return [thread for thread in threading.enumerate() if thread.name == "kvstore-steps"]


def keep_alive_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "kvstore-keep-alive"]


def fd_count() -> int:
    return len(os.listdir("/proc/self/fd"))


def wait_until(holds, seconds: float = LOST_SECONDS) -> bool:
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.005)
    return bool(holds())


def test_attach_maps_pools_that_both_sides_write_to(tmp_path):
    fake = FakeService(tmp_path, ranks=2)
    with Client(fake.address) as client:
        client.attach(layout(ranks=2), build="test 1")
        assert client.engine.startswith("engines/")
        assert (client.store_epoch, client.frame_count, client.next_step) == (fake.epoch, FRAMES, 1)
        assert [pool.rank for pool in client.pools] == [0, 1]
        for rank, pool in enumerate(client.pools):
            assert (pool.frames.shape, pool.block_bytes) == ((FRAMES, STRIDE), BLOCK_BYTES)
            pool.frames[FRAMES - 1, :4] = [rank, 2, 3, 4]
            assert fake.frames(rank)[FRAMES - 1, :4].tolist() == [rank, 2, 3, 4]
        request = pb.AttachRequest.FromString(fake.bytes_of("Attach")[0])
        assert (request.build, request.lease.ToSeconds(), request.layout.ranks) == ("test 1", 10, 2)
    assert fake.count("Detach") == 1
    fake.stop()


def test_only_the_ranks_asked_for_are_mapped(tmp_path):
    fake = FakeService(tmp_path, ranks=3)
    with Client(fake.address) as client:
        client.attach(layout(ranks=3), map_ranks=[2])
        assert [pool.rank for pool in client.pools] == [2]
        assert (len(fake.tethers), client.frame_count) == (1, FRAMES)
    with Client(fake.address) as client:
        client.attach(layout(ranks=3), map_ranks=[])
        assert client.pools == []
        assert client.step([]).step == 1
    with Client(fake.address) as client, pytest.raises(ClientError, match="there is no rank 3"):
        # This service has fewer than the layout.
        client.attach(layout(ranks=4), map_ranks=[0, 3])
    fake.stop()


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ([0, 0], r"map_ranks \[0, 0\]: rank 0 is named twice; name each rank once"),
        ([0, 3], r"map_ranks \[0, 3\]: there is no rank 3; name ranks from 0 to 2"),
        ([-1], r"map_ranks \[-1\]: there is no rank -1; name ranks from 0 to 2"),
    ],
)
def test_ranks_that_can_not_be_mapped_are_told_before_anything_is_asked(tmp_path, ranks, message):
    fake = FakeService(tmp_path, ranks=3)
    with Client(fake.address) as client, pytest.raises(ClientError, match=message):
        client.attach(layout(ranks=3), map_ranks=ranks)
    assert fake.count("Attach") == 0
    fake.stop()


def test_a_rank_that_is_not_mapped_here_can_be_shared_once(tmp_path):
    fake = FakeService(tmp_path, ranks=2)
    with Client(fake.address) as client:
        client.attach(layout(ranks=2), map_ranks=[0])
        for rank in (0, 2, -1):
            with pytest.raises(ClientError, match=f"rank {rank} can't be shared: of 2 ranks, .0. are mapped"):
                client.share_rank(rank)
        shared = client.share_rank(1)
        pool = map_shared_rank(shared)
        assert (pool.rank, pool.block_bytes, pool.frames.shape) == (1, BLOCK_BYTES, (FRAMES, STRIDE))
        pool.frames[3, :2] = [7, 8]
        assert fake.frames(1)[3, :2].tolist() == [7, 8]
        with pytest.raises(ServiceLost, match="no pool of rank 1"):
            map_shared_rank(shared)
        for other in (b"", b"garbage", b"\xff" * 40):
            with pytest.raises(ClientError, match=r"not what Client\.share_rank gave"):
                map_shared_rank(other)
        assert len(fake.tethers) == 2
        pool.close()
    fake.stop()


def test_a_tether_that_is_closed_to_make_room_is_tried_again(fake):
    fake.tethers_dropped = 3
    with Client(fake.address) as client:
        client.attach(layout())
        assert (len(fake.tethers), fake.tethers_dropped) == (1, 0)


def test_a_tether_that_is_closed_always_is_given_up_at_the_deadline(fake):
    fake.tethers_dropped = 10**9
    begin = time.monotonic()
    with Client(fake.address, deadline_seconds=0.5) as client, pytest.raises(ServiceLost, match="no pool of"):
        client.attach(layout())
    assert 0.3 < time.monotonic() - begin < 5.0


def test_a_secret_that_is_spent_is_not_tried_for_long(fake):
    fake.secrets_lost = 1
    begin = time.monotonic()
    with Client(fake.address) as client, pytest.raises(ServiceLost, match="spent already"):
        client.attach(layout())
    assert time.monotonic() - begin < 2.0


def test_sizes_that_contradict_the_file_are_refused_and_the_engine_given_up(fake):
    fake.size_lie = 1
    with (
        Client(fake.address) as client,
        pytest.raises(ClientError, match="has 262144 bytes instead of 270336"),
    ):
        client.attach(layout())
    assert fake.count("Detach") == 1
    other = Layout(block_tokens=16, block_bytes=BLOCK_BYTES + 1, fingerprint=bytes(32))
    with Client(fake.address) as client, pytest.raises(ClientError, match="blocks have 5000 bytes, and 5001"):
        client.attach(other)


def test_a_step_is_numbered_answered_and_mirrored(client, fake):
    response = client.step([operations.allocate(1, 40), operations.allocate(2, 16)])
    assert (response.step, client.next_step) == (1, 2)
    assert client.tables.table(1) == [0, 1, 2]
    assert client.tables.slots(2, 15, 1).tolist() == [3 * BLOCK_TOKENS + 15]
    client.step([operations.free([1])])
    assert 1 not in client.tables
    requests = [pb.StepRequest.FromString(content) for content in fake.bytes_of("Step")]
    assert [(request.step, request.completed_step) for request in requests] == [(1, 0), (2, 1)]


def test_one_step_ahead(client, fake):
    first = client.start_step([operations.allocate(1, 16)], completed_step=0)
    with pytest.raises(ClientError, match="step 1 is under way: take its result first"):
        client.start_step([], completed_step=0)
    with pytest.raises(ClientError, match="step 1 is under way"):
        client.wait_events(0)
    assert first.result() is first.result()
    second = client.start_step([operations.free([1])], completed_step=0)  # The work of step 1 still runs.
    assert fake.wait_called("Step", 2)  # It is on its way before anybody asks for its result.
    assert second.result().step == 2
    assert pb.StepRequest.FromString(fake.bytes_of("Step")[1]).completed_step == 0


@pytest.mark.parametrize("ahead", [False, True])
def test_a_lost_answer_is_asked_for_again_with_the_same_bytes_and_done_once(fake, ahead):
    answered = threading.Event()
    with Client(fake.address, deadline_seconds=0.3) as client:
        client.attach(layout())
        fake.after = lambda method: answered.wait(10) if fake.count("Step") == 1 else None
        wanted = [operations.allocate(1, 40)]
        pending = client.start_step(wanted, completed_step=0) if ahead else None
        response = pending.result() if pending else client.step(wanted)
        fake.after = lambda method: None
        assert response.step == 1
        assert client.tables.table(1) == [0, 1, 2]
        assert fake.steps_applied == 1
        assert len(fake.bytes_of("Step")) == 2
        assert len(set(fake.bytes_of("Step"))) == 1
        assert client.step([operations.allocate(1, 48, known_blocks=3)]).step == 2
        answered.set()


def test_a_service_that_never_answers_is_lost_within_the_bounds(fake):
    answered = threading.Event()
    with Client(fake.address, deadline_seconds=0.1) as client:
        client.attach(layout())
        fake.before = lambda method: answered.wait(10) if method == "Step" else None
        begin = time.monotonic()
        with pytest.raises(ServiceLost, match="DEADLINE_EXCEEDED"):
            client.step([])
        assert time.monotonic() - begin < 1.0
        with pytest.raises(ServiceLost, match="no longer mapped"):
            _ = client.pools[0].frames
        answered.set()


def test_a_refusal_says_why_and_leaves_the_number_unused(client, fake):
    fake.refusals["Step"] = [(grpc.StatusCode.NOT_FOUND, "SEQUENCE_UNKNOWN")]
    with pytest.raises(Refused, match=r"^SEQUENCE_UNKNOWN: it cannot be$") as refused:
        client.step([operations.commit(9, 0, [bytes(32)])])
    error = refused.value
    assert (error.code, error.reason, error.remedy) == (
        grpc.StatusCode.NOT_FOUND,
        "SEQUENCE_UNKNOWN",
        "do otherwise",
    )
    assert client.next_step == 1
    pending = client.start_step([], completed_step=0)
    pending.result()
    fake._answers.clear()
    with pytest.raises(Refused) as gap:
        client.step([])
    assert (gap.value.reason, gap.value.field, gap.value.value) == ("STEP_GAP", "step", "2")


def test_steps_go_over_one_stream_until_one_fails(client, fake):
    for _ in range(3):
        client.step([])
    assert (fake.streams, len(senders())) == (1, 1)
    fake.refusals["Step"] = [(grpc.StatusCode.INVALID_ARGUMENT, "FIELD_INVALID")]
    with pytest.raises(Refused):
        client.step([])
    assert client.step([]).step == 4
    assert fake.streams == 2
    assert wait_until(lambda: len(senders()) == 1)


def test_an_answer_may_wait_for_longer_than_a_deadline(fake):
    """A long forward pass between a step that was sent ahead and its result is nobody's fault."""
    with Client(fake.address, deadline_seconds=0.05) as client:
        client.attach(layout())
        pending = client.start_step([operations.allocate(1, 16)], completed_step=0)
        threading.Event().wait(0.3)  # The time itself is what is tested: six deadlines long.
        assert pending.result().step == 1
        assert (fake.streams, fake.count("Step")) == (1, 1)
        assert client.step([]).step == 2
        assert fake.streams == 1


def test_a_failed_step_is_told_once(client, fake):
    fake.refusals["Step"] = [(grpc.StatusCode.INVALID_ARGUMENT, "FIELD_INVALID")]
    pending = client.start_step([], completed_step=0)
    with pytest.raises(Refused):
        pending.result()
    with pytest.raises(ClientError, match="step 1 has failed, and that was told already"):
        pending.result()
    assert client.step([]).step == 1


def test_an_error_without_details_is_a_refusal_too(client, fake):
    def fail(method):
        raise RuntimeError("a bug")

    fake.before = fail
    with pytest.raises(Refused, match="UNKNOWN") as refused:
        client.lookup([bytes(32)])
    assert refused.value.reason == "UNKNOWN"
    fake.before = lambda method: None


def test_attach_waits_for_a_pool_under_the_same_request(fake):
    fake.refusals["Attach"] = [(grpc.StatusCode.RESOURCE_EXHAUSTED, "POOL_UNAVAILABLE")] * 2
    with Client(fake.address) as client:
        client.attach(layout())
        assert fake.count("Attach") == 3
        assert len(set(fake.bytes_of("Attach"))) == 1
        with pytest.raises(ClientError, match="attached already"):
            client.attach(layout())
    fake.refusals["Attach"] = [(grpc.StatusCode.FAILED_PRECONDITION, "LAYOUT_MISMATCH")]
    with Client(fake.address) as client:
        with pytest.raises(Refused, match="LAYOUT_MISMATCH"):
            client.attach(layout())
        with pytest.raises(ClientError, match="not attached"):
            client.step([])


def test_events_come_once_and_in_order(client, fake):
    client.step([operations.allocate(1, 16)])
    fake.emit(5, sequence=1, state=pb.Sequence.SWAPPED)
    fake.emit(8, sequence=1, state=pb.Sequence.RESIDENT, block_table=[6])
    assert [event.revision for event in client.wait_events(5)] == [5, 8]
    assert client.tables.table(1) == [6]
    fake.emit(9, sequence=1, state=pb.Sequence.DROPPED)
    response = client.step([])  # The fake tells all three again, as the store may.
    assert [event.revision for event in response.events.events] == [9]
    assert client.tables.state(1) == pb.Sequence.DROPPED
    assert client.wait_events(0) == []
    seen = [pb.KeepAliveRequest.FromString(content).seen_revision for content in fake.bytes_of("KeepAlive")]
    assert seen == [0, 9]


def test_wait_events_wakes_when_one_comes_and_may_tell_what_completed(client, fake):
    client.step([operations.allocate(1, 16)])
    emitter = threading.Thread(
        target=lambda: (
            fake.wait_called("KeepAlive", 1) and fake.emit(3, sequence=1, state=pb.Sequence.SWAPPED)
        )
    )
    emitter.start()
    begin = time.monotonic()
    assert [event.revision for event in client.wait_events(60, completed_step=1)] == [3]
    assert time.monotonic() - begin < 3
    emitter.join()
    assert pb.KeepAliveRequest.FromString(fake.bytes_of("KeepAlive")[0]).completed_step == 1


def test_keep_alive_renews_an_idle_engine_and_takes_no_events(fake):
    fake.lease_seconds = 0.3  # Shorter than asked for.
    with Client(fake.address) as client:
        client.attach(layout(), lease_seconds=10)
        client.step([operations.allocate(1, 16)])
        fake.emit(4, sequence=1, state=pb.Sequence.SWAPPED)
        assert fake.wait_called("KeepAlive", 3)
        request = pb.KeepAliveRequest.FromString(fake.bytes_of("KeepAlive")[2])
        assert (request.name, request.seen_revision, request.wait.ToSeconds()) == (client.engine, 0, 0)
        assert client.tables.state(1) == pb.Sequence.RESIDENT
        assert [event.revision for event in client.wait_events(1)] == [4]


def test_an_expired_lease_is_noticed_by_the_keep_alive_thread(fake):
    fake.lease_seconds = 0.3
    with Client(fake.address) as client:
        client.attach(layout())
        fake.refusals["KeepAlive"] = [(grpc.StatusCode.NOT_FOUND, "ENGINE_EXPIRED")]
        (thread,) = keep_alive_threads()
        thread.join(LOST_SECONDS)
        with pytest.raises(ServiceLost, match="ENGINE_EXPIRED"):
            client.step([])
        assert fake.count("Step") == 0
        client.attach(layout())
        assert client.step([]).step == 1


def test_another_epoch_is_a_lost_service(client, fake):
    fake.epoch += 1
    with pytest.raises(ServiceLost, match="was started anew"):
        client.wait_events(0)


def test_a_refused_or_silent_renewal_is_no_loss_while_the_tether_holds(fake):
    fake.lease_seconds = 0.3
    with Client(fake.address) as client:
        client.attach(layout())
        fake.refusals["KeepAlive"] = [
            (grpc.StatusCode.INVALID_ARGUMENT, "FIELD_INVALID"),
            (grpc.StatusCode.UNAVAILABLE, "STARTING"),
        ]
        assert fake.wait_called("KeepAlive", 4)
        assert client.step([]).step == 1


def test_unavailable_is_tried_again_while_the_tether_holds(client, fake):
    fake.refusals["Step"] = [(grpc.StatusCode.UNAVAILABLE, "BUSY")] * 3
    assert client.step([]).step == 1
    assert fake.count("Step") == 4


def test_case_4_07_a_dead_service_is_noticed_without_a_call(tmp_path):
    fake = FakeService(tmp_path)
    client = Client(fake.address)
    client.attach(layout())
    held = client.pools[0].frames[3]
    held[:3] = [1, 2, 3]
    (thread,) = keep_alive_threads()
    begin = time.monotonic()
    fake.stop()
    thread.join(LOST_SECONDS)
    assert not thread.is_alive()
    for call in (lambda: client.step([]), lambda: client.pools[0].frames, lambda: client.wait_events(60)):
        with pytest.raises(ServiceLost):
            call()
    assert time.monotonic() - begin < LOST_SECONDS
    assert held[:3].tolist() == [1, 2, 3]  # Never unmapped under an array in use.
    client.close()


def test_a_waiting_call_ends_with_the_service(tmp_path):
    fake = FakeService(tmp_path)

    def stop_when_it_waits():
        fake.wait_called("KeepAlive", 1)
        fake.stop()

    with Client(fake.address) as client:
        client.attach(layout())
        killer = threading.Thread(target=stop_when_it_waits)
        killer.start()
        begin = time.monotonic()
        with pytest.raises(ServiceLost):
            client.wait_events(60)
        assert time.monotonic() - begin < LOST_SECONDS
        killer.join()
        client.detach()  # There is nothing left to say goodbye to.
        with pytest.raises(ClientError, match="not attached"):
            client.step([])


def keep_stepping(client: Client, pending: PendingStep) -> None:
    end = time.monotonic() + LOST_SECONDS
    while time.monotonic() < end:
        step = pending.result().step
        pending = client.start_step([], completed_step=step)


@contextmanager
def fake_process(folder: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.client.fake", str(folder)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def test_a_large_step_to_a_stopped_service_is_given_up_too(tmp_path):
    """More than a socket holds: gRPC keeps no deadline of a call whose bytes nobody takes."""
    made = Client(f"unix:{tmp_path / 'kvstore.sock'}", deadline_seconds=0.1)
    with made as client, fake_process(tmp_path) as process:
        client.attach(layout())
        client.step([operations.allocate(1, 16)])
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(ServiceLost):
            client.step([operations.allocate(2, 1 << 20, block_keys=[bytes(32)] * 20_000)])


def test_to_close_ends_too_while_a_stopped_service_takes_no_bytes(tmp_path):
    """gRPC ends no call whose bytes it is still writing, not even when its channel is closed."""
    client = Client(f"unix:{tmp_path / 'kvstore.sock'}", deadline_seconds=0.1)
    with fake_process(tmp_path) as process:
        client.attach(layout())
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(ServiceLost):
            client.step([operations.allocate(2, 1 << 20, block_keys=[bytes(32)] * 20_000)])
        closing = threading.Thread(target=client.close, daemon=True)
        closing.start()
        closing.join(LOST_SECONDS)
        assert not closing.is_alive()


def test_a_large_step_is_a_call_between_those_of_the_stream(client, fake):
    client.step([operations.allocate(1, 16)])
    keys = [bytes(32)] * 1_000
    pending = client.start_step([operations.allocate(2, 16_000, block_keys=keys)], completed_step=1)
    assert fake.wait_called("Step", 2), "it is sent before anybody asks for the answer"
    assert pending.result().step == 2
    assert client.step([operations.allocate(3, 16)]).step == 3
    assert (fake.streams, fake.steps_applied) == (1, 3)


def test_case_4_07_after_sigkill_a_new_service_is_found_within_a_second(tmp_path):
    with Client(f"unix:{tmp_path / 'kvstore.sock'}") as client:
        with fake_process(tmp_path) as process:
            client.attach(layout())
            old = (client.engine, client.store_epoch)
            client.step([operations.allocate(1, 16)])
            pending = client.start_step([], completed_step=1)
            process.send_signal(signal.SIGKILL)
            begin = time.monotonic()
            with pytest.raises(ServiceLost):
                keep_stepping(client, pending)
            assert time.monotonic() - begin < LOST_SECONDS
        begin = time.monotonic()
        with pytest.raises(ServiceLost):
            client.operator.usage()
        assert time.monotonic() - begin < 0.5  # An engine that can goes on without.
        with fake_process(tmp_path):
            begin = time.monotonic()
            client.attach(layout())
            assert time.monotonic() - begin < 1
            assert client.engine != old[0]
            assert client.store_epoch != old[1]
            assert (client.next_step, 1 in client.tables) == (1, False)
            assert client.step([operations.allocate(1, 16)]).step == 1
            client.detach()


def test_attach_to_nobody_fails_within_the_deadline(tmp_path):
    with Client(f"unix:{tmp_path / 'nobody.sock'}", deadline_seconds=0.3) as client:
        begin = time.monotonic()
        with pytest.raises(ServiceLost, match="UNAVAILABLE"):
            client.attach(layout())
        assert time.monotonic() - begin < LOST_SECONDS


def test_a_tether_ends_with_the_last_array_not_before(client, fake):
    frames = client.pools[0].frames
    view = frames[5:9]
    tether = fake.tethers[0]
    client.close()
    del frames
    assert select.select([tether], [], [], 0)[0] == []
    assert np.all(view == 0)
    del view
    tether.settimeout(LOST_SECONDS)
    assert tether.recv(1) == b""


def test_lookup_and_usage(client, fake):
    assert client.lookup([bytes(32)] * 3, tenant="a").blocks_cached == 3
    request = pb.LookupRequest.FromString(fake.bytes_of("Lookup")[0])
    assert (request.engine, request.tenant) == (client.engine, "a")
    with Client(fake.address) as stranger:
        assert stranger.operator.usage().store_epoch == fake.epoch


# In a process of its own that has a client and no server: a gRPC server does not survive a fork beside it,
# and the fake would go down in our place.
FORKING = """
import os, select, sys, warnings
from kvstore.client import Client, ForkedChild, Layout

warnings.simplefilter("ignore", DeprecationWarning)  # Forking with threads is what this is about.
layout = Layout(block_tokens=16, block_bytes=5000, fingerprint=bytes(32))
with Client(sys.argv[1]) as client:
    client.attach(layout)
    pending = client.start_step([], completed_step=0)
    calls = [
        lambda: client.attach(layout),
        lambda: client.step([]),
        lambda: client.start_step([], completed_step=0),
        lambda: client.wait_events(1),
        lambda: client.lookup([]),
        client.operator.usage,
        client.detach,
        pending.result,
    ]
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        for call in calls:
            try:
                call()
            except ForkedChild:
                os.write(writer, b"F")
        client.close()
        os.write(writer, b"C")
        os._exit(0)
    os.close(writer)
    in_time = select.select([os.pidfd_open(child)], [], [], 1.0)[0] or os.kill(child, 9)
    print(os.waitpid(child, 0)[1], os.read(reader, 100).decode(), pending.result().step, client.step([]).step)
"""


def test_case_3_09_a_forked_child_is_told_so_and_never_hangs(fake):
    """And its parent is none the worse for it."""
    command = [sys.executable, "-c", FORKING, fake.address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == "0 FFFFFFFFC 1 2\n", done.stderr


def test_nothing_leaks(fake):
    def live_once():
        with Client(fake.address) as client:
            client.attach(layout())
            client.step([operations.allocate(1, 16)])
        client = Client(fake.address)
        client.attach(layout())
        client.start_step([], completed_step=0)
        client.close()

    def settle():
        for tether in fake.tethers:
            tether.close()
        fake.tethers.clear()

    live_once()
    settle()
    before = fd_count()
    for _ in range(5):
        live_once()
    assert keep_alive_threads() == []
    settle()
    assert wait_until(lambda: fd_count() <= before)


def test_an_interrupted_step_can_be_asked_for_again(client, fake, monkeypatch):
    pending = client.start_step([operations.allocate(1, 16)], completed_step=0)
    with monkeypatch.context() as patched:
        patched.setattr(type(pending.started), "result", interrupt)
        with pytest.raises(KeyboardInterrupt):
            pending.result()
    with pytest.raises(ClientError, match="step 1 is under way"):
        client.step([])
    assert pending.result().step == 1
    assert fake.steps_applied == 1
    # The answer that nobody took from the stream is not taken for the next one's.
    assert client.step([operations.allocate(2, 16)]).step == 2


def interrupt(*_):
    raise KeyboardInterrupt


def test_case_7_09_clients_in_two_event_loops_log_no_error(fake, caplog):
    answered: list[bool] = []

    async def live():
        with Client(fake.address) as client:
            client.attach(layout())
            for step in range(1, 21):
                answered.append(client.step([]).step == step)
                await asyncio.sleep(0)

    threads = [threading.Thread(target=lambda: asyncio.run(live())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answered == [True] * 40
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_step_ends_with_the_attachment_it_was_sent_in(client):
    pending = client.start_step([], completed_step=0)
    client.detach()
    client.attach(layout())
    with pytest.raises(ServiceLost, match="closed or detached"):
        pending.result()
    assert client.step([]).step == 1


def test_closed_twice_is_closed_and_used_after_is_an_error(client):
    client.close()
    client.close()
    with pytest.raises(ClientError, match="is closed"):
        client.step([])
    with pytest.raises(ClientError, match="is closed"):
        client.attach(layout())


@pytest.mark.parametrize(
    "address", ["unix:", "unix://", "unix://rel/x", "localhost:50051", "dns:///service", "http://service/"]
)
def test_what_is_no_unix_socket_is_refused(address):
    with pytest.raises(ClientError, match="no Unix socket"):
        Client(address)


@pytest.mark.parametrize("address", ["/run/a%41.sock", "unix:/run/a?b", "/run/a,b", "/run/\udcff.sock"])
def test_what_grpc_would_take_for_another_address_is_refused(address):
    with pytest.raises(ClientError, match="cannot be a socket's address"):
        Client(address)


def test_an_address_too_long_for_the_system_is_refused():
    with pytest.raises(ClientError, match="at most 107 bytes"):
        Client("/" + "x" * 107)
    assert to_address("/" + "x" * 106) == "unix:/" + "x" * 106


def test_addresses_are_told_to_grpc_as_absolute_or_relative_paths():
    for text in ("/run/k", "//run/k", "unix:/run/k", "unix:///run/k", "unix:////run/k"):
        assert to_address(text) == "unix:/run/k"
    assert to_address("unix:k") == to_address("k") == "unix:k"


def test_deadlines_are_checked():
    with pytest.raises(ValueError, match="deadline_seconds must be above 0, not 0"):
        Client("unix:/nowhere", deadline_seconds=0)


def test_the_default_address_is_this_users(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert default_address() == f"unix:{tmp_path}/kvstore/kvstore.sock"
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_RUNTIME_DIR", value)
        monkeypatch.setattr("os.getuid", lambda: 987654)
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        assert default_address() == f"unix:{tmp_path}/kvstore-987654/kvstore.sock"
