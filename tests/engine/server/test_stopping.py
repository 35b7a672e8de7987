"""Requests end by their time and by the server's stop, also while the engine's thread hangs in a call."""

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest

from engine.engine import Engine
from engine.server.limits import Limits
from tests.engine.server.conftest import Running, running
from tests.engine.server.waiting import until

pytestmark = pytest.mark.usefixtures("service")

# Fails what hangs, and decides nothing else.
PATIENCE = 20
LONG = {"model": "tiny", "prompt": "a", "max_tokens": 1500, "seed": 1}


@contextmanager
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Each step of an engine, until the event is set."""
    goes_on = threading.Event()
    step = Engine.step

    def hang(engine: Engine) -> list:
        assert goes_on.wait(2 * PATIENCE)
        return step(engine)

    monkeypatch.setattr(Engine, "step", hang)
    try:
        yield goes_on
    finally:
        goes_on.set()


def ask(server: Running, **more: object) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/completions", json={**LONG, **more}, timeout=PATIENCE)


def test_a_request_is_late_while_the_engine_hangs_and_the_engine_frees_it_when_it_can(server, monkeypatch):
    with hanging(monkeypatch) as goes_on:
        late = ask(server, n=2, timeout_seconds=0.2)
        assert (late.status_code, late.json()["error"]["code"]) == (504, "deadline_exceeded")
        assert not goes_on.is_set()
        assert server.server.admission.answers == 0
    until(lambda: not server.server.bridge._places)
    assert ask(server, max_tokens=3).status_code == 200


@pytest.mark.parametrize(("stop_seconds", "signals"), [(0.1, 1), (600.0, 2)])
def test_answers_that_outlast_the_stop_are_told_an_error(
    loaded, service, monkeypatch, caplog, stop_seconds, signals
):
    limits = Limits(stop_seconds=stop_seconds)
    with (
        running(loaded, service, limits) as server,
        ThreadPoolExecutor() as threads,
        httpx.Client() as client,
    ):
        streamed = client.stream(
            "POST", f"{server.url}/v1/completions", json={**LONG, "n": 4, "stream": True}, timeout=PATIENCE
        )
        with streamed as stream:
            lines = stream.iter_lines()
            next(lines)
            with hanging(monkeypatch):
                whole = threads.submit(ask, server)
                until(lambda: server.server.admission.answers == 5)
                http = server.server._http
                for _ in range(signals):
                    http.servers[0].get_loop().call_soon_threadsafe(http.take_signal)
                told = whole.result()
                *_, last = (line for line in lines if line)
    assert (told.status_code, told.json()["error"]["code"]) == (503, "not_serving")
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "not_serving"
    assert "ASGI" not in caplog.text


def test_a_client_that_does_not_go_is_cut_off_without_a_traceback(loaded, service, monkeypatch, caplog):
    """Half a body, and then nothing."""
    monkeypatch.setattr("engine.server.serving.TELL_SECONDS", 0.1)
    with running(loaded, service, Limits(stop_seconds=0.1)) as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=PATIENCE) as client:
            head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            client.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
            until(lambda: bool(server.server._http.server_state.tasks))
            assert server.end()
    assert "ASGI" not in caplog.text
