"""An engine that has nothing to do: it tells once what has ended, hears once, and then asks nobody."""

import signal
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from engine.engine import Engine
from engine.scheduler import Haste
from kvstore.client import Client
from kvstore.demo.children import Service
from kvstore.v1 import kvstore_pb2 as pb
from tests.engine.talk import pressed
from tests.engine.test_engine import assert_as_plain, make_requests, model, run_to_end, serve

__all__ = ["model"]

WAIT_SECONDS = 30.0


class TalkativeClient(Client):
    """Counts what it is asked, and tells what it was given to tell."""

    asked = 0
    to_tell: tuple[pb.Event, ...] = ()

    def wait_events(self, seconds: float, *, completed_step: int | None = None) -> list[pb.Event]:
        self.asked += 1
        told, self.to_tell = self.to_tell, ()
        return [*super().wait_events(seconds, completed_step=completed_step), *told]


@pytest.fixture
def service(tmp_path) -> Iterator[Service]:
    with serve(tmp_path, gpu_frames=200, cpu_frames=80) as service:
        yield service


@pytest.mark.parametrize("is_ahead", [False, True])
def test_what_has_ended_is_told_once_and_then_nobody_is_asked(service, model, is_ahead):
    client = TalkativeClient(service.address)
    with closing(Engine(model, client, is_ahead=is_ahead)) as engine:
        for turn in range(2):
            [request] = make_requests(1, (40,), new_tokens=9, seed=turn)
            stream = engine.submit(request)
            run_to_end(engine)
            asked = client.asked
            for _ in range(5):
                engine.rest()
            assert client.asked == asked + 1
            assert_as_plain(model, [stream])
            service.rest()


def test_what_is_told_then_is_heard_by_who_decides(service, model):
    client = TalkativeClient(service.address)
    with closing(Engine(model, client, is_ahead=True)) as engine:
        first, second = make_requests(2, (40,), new_tokens=20)
        engine.submit(first)
        run_to_end(engine)
        engine._scheduler.take_events([pressed(pb.PRESSURE_HIGH)])
        client.to_tell = (pressed(pb.PRESSURE_LOW),)
        engine.rest()
        engine.submit(second)
        for _ in range(4):
            engine.step()
        work = engine._scheduler.next_work()
        assert work is not None
        assert engine._scheduler.haste(work) is not Haste.NOW


def test_a_service_that_has_gone_is_noticed_all_the_same(service, model):
    with closing(Engine(model, Client(service.address))) as engine:
        engine.rest()
        service.end(signal.SIGKILL)
        end = time.monotonic() + WAIT_SECONDS
        while engine.is_attached and time.monotonic() < end:
            engine.rest()
            time.sleep(0.01)
        assert not engine.is_attached
