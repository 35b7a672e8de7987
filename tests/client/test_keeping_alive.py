"""Leases and the loss of a service, against a fake one: events, renewals, death noticed and survived."""

import signal
import threading
import time

import grpc
import pytest

from kvstore.client import Client, ClientError, PendingStep, ServiceLost, operations
from kvstore.v1 import kvstore_pb2 as pb
from tests.client.fake import FakeService
from tests.client.helpers import LOST_SECONDS, fake_process, keep_alive_threads, layout


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
    assert time.monotonic() - begin < 30
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
