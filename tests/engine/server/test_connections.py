"""Connections that hold something for too long are cut, and nothing else is."""

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from engine.server.chat import ChatShape
from engine.server.limits import Limits
from kvstore.client import Client
from tests.engine.server.conftest import Running, running
from tests.engine.server.waiting import until

pytestmark = pytest.mark.usefixtures("service")

LIMITS = Limits(connections=4, receive_seconds=0.4, send_seconds=0.4, stop_seconds=5.0)


@pytest.fixture(scope="module")
def strict(loaded, service) -> Iterator[Running]:
    with running(loaded, service, LIMITS) as server:
        yield server


@contextmanager
def connected(server: Running, buffer_bytes: int = 0) -> Iterator[socket.socket]:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.socket() as connection:
        if buffer_bytes:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        connection.settimeout(30)
        connection.connect((host, int(port)))
        yield connection


def is_cut(connection: socket.socket) -> bool:
    """Waits for it; what comes before is thrown away."""
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    return True


def request_bytes(body: dict, length: int | None = None) -> bytes:
    text = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length or len(text)}\r\n"
    )
    return head.encode() + b"content-type: application/json\r\n\r\n" + text


def answers_under_way(server: Running) -> int:
    return server.server.admission.answers


@pytest.mark.parametrize("sent", [b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: "])
def test_a_head_that_does_not_come_is_not_waited_for(strict, sent):
    with connected(strict) as connection:
        connection.sendall(sent)
        assert is_cut(connection)


def test_a_second_head_has_as_long_as_the_first(strict):
    with connected(strict) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        while b'"ok"' not in connection.recv(1 << 16):
            pass
        connection.sendall(b"GET /hea")
        assert is_cut(connection)


def test_a_body_that_does_not_come_is_an_error(strict):
    with connected(strict) as connection:
        connection.sendall(request_bytes({"model": "tiny"}, length=500))
        assert b"408 Request Timeout" in connection.recv(1 << 16)
        assert is_cut(connection)


def test_a_body_that_breaks_off_is_nobodys(strict, caplog):
    with connected(strict) as connection:
        connection.sendall(request_bytes({"model": "tiny"}, length=500))
    assert httpx.get(strict.url + "/health").status_code == 200
    assert not caplog.records


def test_a_body_of_two_lengths_is_refused_and_what_follows_is_not_read(strict, caplog):
    """One reads it as of one length, another as of the other: so requests are smuggled past a proxy."""
    text = b"0\r\n\r\nGET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n"
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    lengths = f"content-length: {len(text)}\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    with connected(strict) as connection:
        connection.sendall(head + lengths + text)
        told = b""
        while piece := connection.recv(1 << 16):
            told += piece
    assert told.startswith(b"HTTP/1.1 400")
    assert told.count(b"HTTP/1.1") == 1
    assert not caplog.records


def test_what_is_no_http_is_no_matter_for_the_log(strict, caplog):
    for sent in (b"\x16\x03\x01\x00", b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n"):
        with connected(strict) as connection:
            connection.sendall(sent + b"\r\n\r\n")
            assert is_cut(connection)
    until(lambda: httpx.get(strict.url + "/health").status_code == 200)
    assert not caplog.records


def test_more_connections_than_there_may_be_are_closed(strict, caplog):
    with ExitStack() as stack:
        for _ in range(LIMITS.connections):
            stack.enter_context(connected(strict))
        fifth = stack.enter_context(connected(strict))
        assert is_cut(fifth)
        # The log says why, and not for each.
        sixth = stack.enter_context(connected(strict))
        assert is_cut(sixth)
    assert [each.getMessage() for each in caplog.records] == [
        "all 4 connections that may be open are, and more are closed at once (--connections)"
    ]
    until(lambda: httpx.get(strict.url + "/health").status_code == 200)


def test_who_takes_nothing_of_a_long_answer_is_cut_and_holds_no_memory(strict, service, monkeypatch):
    # Each event is made long, so that the buffers between the two are full after a few.
    lengthen_events(monkeypatch)
    body = {"model": "tiny", "stream": True, "seed": 3, "max_tokens": 2000, "n": 2, "logit_bias": {}}
    with connected(strict, buffer_bytes=4096) as connection:
        connection.sendall(request_bytes({**body, "messages": [{"role": "user", "content": "go on"}]}))
        until(lambda: answers_under_way(strict) == 2)
        until(lambda: answers_under_way(strict) == 0)
        assert is_cut(connection)
    with Client(service.address) as client:
        until(lambda: client.operator.usage().tiers[0].frames_used == 0)


def test_a_slow_reader_gets_all_in_fewer_pieces(server, monkeypatch):
    """While one piece is being sent, tokens are put together; none is lost, and the engine goes on."""
    messages = [{"role": "user", "content": "x"}]
    body = {"model": "tiny", "stream": True, "seed": 3, "max_tokens": 60, "messages": messages}
    fast = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=30).content
    lengthen_events(monkeypatch)
    with connected(server, buffer_bytes=4096) as connection:
        connection.sendall(request_bytes(body))
        slow = connection.recv(1)  # With the first token.
        until(lambda: not server.server.bridge._engine.has_work)
        assert answers_under_way(server) == 1
        while b"[DONE]" not in slow[-100:]:
            slow += connection.recv(1 << 20)
    assert texts(slow) == texts(fast)
    assert slow.count(b'"content"') < fast.count(b'"content"')


def lengthen_events(monkeypatch) -> None:
    """The buffers between server and client are full after a few."""
    piece = ChatShape.piece
    monkeypatch.setattr(ChatShape, "piece", lambda *told: {**piece(*told), "padding": "x" * 200_000})


def texts(events: bytes) -> str:
    lines = [line for line in events.splitlines() if line.startswith(b'data: {"')]
    choices = [choice for line in lines for choice in json.loads(line[6:])["choices"]]
    return "".join(choice["delta"].get("content", "") for choice in choices)
