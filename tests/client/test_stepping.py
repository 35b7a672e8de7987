"""Steps against a fake service: exactly once, one ahead, on one stream; refusals, lost answers, signals."""

import asyncio
import signal
import threading
import time

import grpc
import pytest

from kvstore.client import Client, ClientError, Refused, ServiceLost, operations
from kvstore.v1 import kvstore_pb2 as pb
from tests.client.fake import BLOCK_TOKENS
from tests.client.helpers import LOST_SECONDS, fake_process, layout, senders, wait_until


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
        fake.before = lambda method: answered.wait(60) if method == "Step" else None
        begin = time.monotonic()
        with pytest.raises(ServiceLost, match="DEADLINE_EXCEEDED"):
            client.step([])
        assert time.monotonic() - begin < LOST_SECONDS
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
