"""Requests that end before their answer, services that end before the server: nothing is left behind."""

import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from engine.server.limits import Limits
from kvstore.client import Client
from kvstore.demo.children import Service
from tests.engine.server.conftest import Running, running
from tests.engine.server.waiting import until
from tests.engine.test_engine import serve

pytestmark = pytest.mark.usefixtures("service")

LONG = {"model": "tiny", "max_tokens": 3000, "stop": None}
TIGHT = {"gpu_frames": 150, "cpu_frames": 150}
HELLO = [{"role": "user", "content": "hello " * 30}]


@contextmanager
def usage_of(server: Running) -> Iterator:
    with Client(server.service.address) as client:
        yield client.operator.usage


def until_empty(server: Running) -> None:
    """No answer under way, no frame in use, no sequence known to the store."""
    with usage_of(server) as usage:
        until(lambda: server.server.admission.answers == 0)
        until(lambda: usage().tiers[0].frames_used == usage().tiers[0].frames_limbo == 0)
        until(lambda: not any(engine.sequences for engine in usage().engines))
    assert not server.server.bridge._places


def until_running(server: Running, answers: int = 1) -> None:
    with usage_of(server) as usage:
        until(lambda: sum(engine.sequences for engine in usage().engines) >= answers)


def test_a_stream_that_is_closed_gives_back_all_at_once(server, client):
    with client.chat.completions.create(**LONG, messages=HELLO, n=3, seed=1, stream=True) as stream:
        next(iter(stream))
        until_running(server, 3)
    until_empty(server)


def test_a_client_that_hangs_up_while_it_waits_is_noticed(server):
    with closing(httpx.Client()) as client, suppress(httpx.ReadTimeout):
        body = {**LONG, "messages": HELLO, "seed": 1}
        client.post(f"{server.url}/v1/chat/completions", json=body, timeout=httpx.Timeout(30, read=0.3))
    until_empty(server)


def test_who_hangs_up_in_the_queue_leaves_it(loaded, service):
    """More requests than run at once, all given up but one."""
    with running(loaded, service, Limits(stop_seconds=5.0)) as server:
        with server.client() as client:
            held = client.chat.completions.create(**LONG, messages=HELLO, seed=1, stream=True)
            threads = [threading.Thread(target=give_up, args=(server, at)) for at in range(30)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert next(iter(held)).choices
            held.close()
        until_empty(server)


def give_up(server: Running, seed: int) -> None:
    body = {**LONG, "messages": HELLO, "seed": seed}
    with suppress(httpx.TimeoutException):
        httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=httpx.Timeout(30, read=0.2))


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_request_over_its_time_ends_with_an_error(server, client, is_streamed):
    asked = {**LONG, "messages": HELLO, "seed": 1, "extra_body": {"timeout_seconds": 0.5}}
    with pytest.raises(openai.APIError, match=r"not done after its 0\.5 seconds") as caught:
        for _ in client.chat.completions.create(**asked, n=2, stream=is_streamed):
            pass
    assert caught.value.code == "deadline_exceeded"
    until_empty(server)


def test_a_request_that_is_late_before_it_begins_is_an_http_error(server, client, monkeypatch):
    words = type(server.server.workshop.words)
    encode = words.encode

    def late(*told):
        time.sleep(0.01)
        return encode(*told)

    monkeypatch.setattr(words, "encode", late)
    asked = {**LONG, "messages": HELLO, "stream": True, "extra_body": {"timeout_seconds": 0.001}}
    with pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(**asked)
    assert caught.value.status_code == 504
    assert caught.value.response.headers["x-should-retry"] == "false"
    until_empty(server)


@pytest.fixture(scope="module")
def tight_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tight")


@pytest.fixture(scope="module")
def tight(tight_folder: Path) -> Iterator[Service]:
    """A service with too little room for what is asked of it."""
    with serve(tight_folder, **TIGHT) as service:
        yield service


def test_what_memory_can_never_hold_is_refused_and_the_rest_goes_on(tight, loaded):
    most = TIGHT["gpu_frames"] * 16
    with running(loaded, tight) as server, server.client() as client:
        with pytest.raises(openai.BadRequestError, match="can never hold") as caught:
            client.completions.create(model="tiny", prompt="x" * (most + 1))
        assert caught.value.code == "memory_exceeded"
        with pytest.raises(openai.BadRequestError, match="room for at most 9"):
            client.completions.create(
                model="tiny", prompt="x" * (most - 8), max_tokens=200, seed=1, stream=True
            )
        assert client.completions.create(model="tiny", prompt="abc", max_tokens=5).choices
        until_empty(server)


REFUSALS = (
    "context_length_exceeded",
    "deadline_exceeded",
    "memory_exceeded",
    "model_not_found",
    "rate_limit_exceeded",
)


class Visitor(threading.Thread):
    """Asks for this and that, and often goes before it has it."""

    def __init__(self, server: Running, seed: int) -> None:
        super().__init__()
        self._server = server
        self._draw = random.Random(seed)
        self.surprise: Exception | None = None
        self.served = self.refused = 0

    def run(self) -> None:
        try:
            with self._server.client(timeout=60.0) as client:
                for _ in range(4):
                    self._ask(client)
        except Exception as error:
            self.surprise = error

    def _ask(self, client: Any) -> None:
        draw = self._draw
        content = "a" * draw.choice([10, 100, 100, 1500, 5000])
        asked = {
            "model": draw.choice(["tiny"] * 9 + ["huge"]),
            "messages": [{"role": "user", "content": content}],
            "max_tokens": draw.choice([1, 20, 100]),
            "n": draw.choice([1, 1, 3]),
            "user": draw.choice(["", "u1", "u2"]),
            "extra_body": {"timeout_seconds": draw.choice([0.05, 60.0, 60.0, 60.0])},
        }
        try:
            if draw.random() < 0.5:
                with client.chat.completions.create(**asked, stream=True) as stream:
                    for _ in islice(stream, draw.choice([0, 1, 10, 1000])):
                        pass
            else:
                client.with_options(timeout=draw.choice([0.05, 0.3, 60.0])).chat.completions.create(**asked)
            self.served += 1
        except openai.APITimeoutError:
            pass
        except openai.APIError as error:
            if error.code not in REFUSALS:
                raise
            self.refused += 1


def test_visitors_who_come_and_go_leave_nothing_and_no_error_in_the_log(loaded, tight, caplog):
    """In a pool far too small for all of them, so that they are swapped too."""
    limits = Limits(answers_at_once=24, stop_seconds=10.0)
    with running(loaded, tight, limits) as server:
        visitors = [Visitor(server, seed) for seed in range(32)]
        for visitor in visitors:
            visitor.start()
        for visitor in visitors:
            visitor.join()
        assert [visitor.surprise for visitor in visitors if visitor.surprise] == []
        until_empty(server)
        assert sum(visitor.served for visitor in visitors) > 0
        assert sum(visitor.refused for visitor in visitors) > 0
        with server.client() as client:
            assert client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=2).choices
        until_empty(server)
    assert [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


def test_the_server_outlives_its_service(tight, tight_folder, loaded):
    """An answer under way goes on where it was; who can't wait is told; who comes later is served."""
    asked = {"model": "tiny", "messages": HELLO, "max_tokens": 150, "seed": 1, "n": 2}
    with running(loaded, tight) as server, server.client() as client:
        whole = [choice.message.content for choice in client.chat.completions.create(**asked).choices]
        texts = {0: "", 1: ""}
        stream = iter(client.chat.completions.create(**asked, stream=True))
        take(stream, texts, 20)
        tight.end(signal.SIGKILL)
        until(lambda: httpx.get(server.url + "/health").status_code == 503)
        with pytest.raises(openai.InternalServerError, match=r"0\.3 seconds"):
            client.chat.completions.create(**asked, extra_body={"timeout_seconds": 0.3})
        with serve(tight_folder, **TIGHT):
            take(stream, texts, 10**6)
            assert [texts[0], texts[1]] == whole
            assert httpx.get(server.url + "/health").status_code == 200
            assert client.chat.completions.create(**asked).choices[0].message.content == whole[0]
            until_empty(server)


def take(stream, texts: dict[int, str], count: int) -> None:
    for chunk in islice(stream, count):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
