"""Steps on a stream: the same as one by one, in order, and ended by whatever is refused."""

import queue
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import grpc
import pytest

from kvstore.server.calls import STREAMS_MAX, Streams
from kvstore.server.errors import TooManyStreams, status_of
from kvstore.server.service import CALLS_MAX
from kvstore.v1 import kvstore_pb2 as pb
from kvstore.v1.kvstore_pb2_grpc import KVStoreStub
from tests.server.harness import DEADLINE_SECONDS, Engine, Service, allocate, refusal


class Stream:
    def __init__(self, stub: KVStoreStub, engine: Engine) -> None:
        self.engine = engine
        self._requests: queue.SimpleQueue[pb.StepRequest | None] = queue.SimpleQueue()
        sent: Iterator[pb.StepRequest] = iter(self._requests.get, None)
        self.call = stub.StepStream(sent, timeout=DEADLINE_SECONDS)

    def send(self, number: int, *operations: pb.Operation) -> pb.StepRequest:
        request = pb.StepRequest(
            engine=self.engine.name, step=number, completed_step=number - 1, operations=operations
        )
        self._requests.put(request)
        return request

    def receive(self) -> pb.StepResponse:
        return next(self.call)

    def end(self) -> None:
        self._requests.put(None)


@contextmanager
def stream(service: Service) -> Iterator[Stream]:
    with service.stub() as stub, Engine(stub) as engine:
        opened = Stream(stub, engine)
        try:
            yield opened
        finally:
            opened.end()
            opened.call.cancel()


def test_answers_come_in_the_order_of_the_steps_also_of_those_sent_ahead(lent: Service) -> None:
    with stream(lent) as steps:
        for number in (1, 2, 3):
            steps.send(number, allocate(1, 4 * number))
        answers = [steps.receive() for _ in range(3)]
        assert [answer.step for answer in answers] == [1, 2, 3]
        assert [len(answer.results[0].allocate.block_table) for answer in answers] == [1, 2, 3]
        steps.end()
        with pytest.raises(StopIteration):
            steps.receive()
        assert steps.call.code() is grpc.StatusCode.OK


def test_a_refusal_ends_the_stream_with_its_status_and_what_follows_is_not_looked_at(
    lent: Service,
) -> None:
    with stream(lent) as steps:
        steps.send(1, allocate(1, 4))
        steps.send(2, allocate(2, 0))
        steps.send(2, allocate(3, 4))
        assert steps.receive().step == 1
        with pytest.raises(grpc.RpcError) as error:
            steps.receive()
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert refusal(error.value).metadata["field"] == "operations[0].allocate.token_count"
        # Nothing has become of either: the number is free, and so are the frames.
        answer = steps.engine.stub.Step(
            pb.StepRequest(engine=steps.engine.name, step=2, operations=[allocate(4, 4)])
        )
        assert answer.step == 2
        [engine] = steps.engine.stub.GetUsage(pb.GetUsageRequest()).engines
        assert engine.sequences == 2


def test_a_number_sent_again_is_answered_again_by_either_way(lent: Service) -> None:
    with stream(lent) as steps:
        request = steps.send(1, allocate(1, 8))
        answer = steps.receive()
        assert steps.engine.stub.Step(request) == answer
        steps.send(1, allocate(1, 8))
        assert steps.receive() == answer
        steps.send(1, allocate(1, 9))
        with pytest.raises(grpc.RpcError) as error:
            steps.receive()
        assert refusal(error.value).reason == "STEP_CHANGED"


def test_one_stream_and_calls_take_turns(lent: Service) -> None:
    with stream(lent) as steps:
        steps.send(1, allocate(1, 4))
        assert steps.receive().step == 1
        steps.engine.steps = 1
        assert steps.engine.step(allocate(1, 8)).step == 2
        steps.send(3, allocate(1, 12))
        assert steps.receive().step == 3


def test_a_keep_alive_waits_on_beside_a_stream(lent: Service) -> None:
    with stream(lent) as steps:
        steps.send(1, allocate(1, 4))
        steps.receive()
        request = pb.KeepAliveRequest(name=steps.engine.name, completed_step=0)
        request.wait.FromSeconds(30)
        waiting = steps.engine.stub.KeepAlive.future(request, timeout=2 * DEADLINE_SECONDS)
        steps.send(2, allocate(1, 8))
        assert steps.receive().step == 2
        assert not waiting.done()
        waiting.cancel()


def test_a_stop_ends_idle_streams_at_once(service: Service) -> None:
    with stream(service) as steps:
        steps.send(1, allocate(1, 4))
        steps.receive()
        assert service.end() == 0
        with pytest.raises(grpc.RpcError) as error:
            steps.receive()
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
        assert error.value.details() == "the service is stopping"
        assert "Traceback" not in service.log


def test_streams_leave_places_for_other_calls() -> None:
    streams = Streams()
    with ExitStack() as places:
        for _ in range(STREAMS_MAX):
            places.enter_context(streams.place())
        with pytest.raises(TooManyStreams, match="1024 streams are open already") as refused, streams.place():
            pass
        assert status_of(refused.value).code is grpc.StatusCode.RESOURCE_EXHAUSTED
    with streams.place():
        pass
    assert STREAMS_MAX < CALLS_MAX
