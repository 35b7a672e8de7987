"""The HTTP beside the service: two paths, and nobody who asks it can hold anything up."""

import asyncio
import errno
import socket
from contextlib import AsyncExitStack, suppress

import pytest

from kvstore.server import metrics_http
from kvstore.server.metrics_http import CONNECTIONS_MAX, MetricsServer
from tests.server.http_asking import GET, ask, asked, connected, run


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (GET, 200),
        (b"GET /metrics?name=x HTTP/1.0\r\n\r\n", 200),
        (b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n", 200),
        (b"GET /healthz HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", 200),
        (b"GET / HTTP/1.1\r\n\r\n", 404),
        (b"GET /metrics/x HTTP/1.1\r\n\r\n", 404),
        (b"GET /../etc/passwd HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\n\r\n", 405),
        (b"DELETE /healthz HTTP/1.1\r\n\r\n", 405),
        (b"GET /metrics HTTP/1.1\r\nHost: example.com\r\n\r\n", 403),
        (b"GET /metrics HTTP/1.1\r\nHost: 10.0.0.1:9464\r\n\r\n", 403),
        (b"GET /metrics HTTP/1.1\r\nHost: \r\n\r\n", 403),
        (b"GET metrics HTTP/1.1\r\n\r\n", 400),
        (b"GET /metrics HTTP/2.0\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400),
        (b"GET /met\xffrics HTTP/1.1\r\n\r\n", 400),
        (b"GET /" + b"x" * 9_000 + b" HTTP/1.1\r\n\r\n", 431),
        (b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 2_000, 431),
    ],
)
def test_two_paths_and_no_more(request_: bytes, status: int) -> None:
    async def work(port: int) -> None:
        answer = await ask(port, request_)
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %d " % status), answer
        assert b"Content-Length: %d" % len(body) in head
        if status == 200:
            assert body == (b"ok\n" if b"healthz" in request_ else b"up 1\n")

    run(work)


def test_head_has_no_body() -> None:
    async def work(port: int) -> None:
        answer = await ask(port, b"HEAD /metrics HTTP/1.1\r\n\r\n")
        assert b"Content-Length: 5\r\n" in answer
        assert answer.endswith(b"\r\n\r\n")

    run(work)


def test_half_a_request_is_no_request() -> None:
    async def work(port: int) -> None:
        async with connected(port) as (_, writer):
            writer.write(b"GET /met")
        assert b"up 1" in await ask(port, GET)

    run(work)


def test_what_fails_is_told_without_its_cause() -> None:
    def fail() -> bytes:
        raise ZeroDivisionError("a secret")

    async def work(port: int) -> None:
        answer = await ask(port, GET)
        assert answer.startswith(b"HTTP/1.1 500 ")
        assert b"secret" not in answer
        assert b" 200 " in await ask(port, b"GET /healthz HTTP/1.1\r\n\r\n")

    run(work, fail)


# -------------------------------------------------------------------------------- bounds


def test_whoever_says_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_http, "SECONDS_MAX", 0.05)

    async def work(port: int) -> None:
        assert await ask(port, b"GET /metrics HTTP/1.1\r\n") == b""

    run(work)


def test_whoever_does_not_read_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_http, "SECONDS_MAX", 0.05)

    async def work(port: int) -> None:
        async with connected(port) as (_, writer):
            writer.write(GET)
            # Far more than the sockets' buffers hold. It ends by being cut off: what is sent then is refused.
            with suppress(ConnectionError):
                while True:
                    await asyncio.sleep(0.02)
                    writer.write(b"\0")
                    await writer.drain()

    run(work, lambda: b"x" * (64 << 20))


def test_no_more_connections_than_there_is_room_for() -> None:
    async def work(port: int) -> None:
        async with AsyncExitStack() as stack:
            for _ in range(CONNECTIONS_MAX):
                await stack.enter_async_context(connected(port))
            # Until the last of these is taken in.
            while await ask(port, GET):
                pass
        while b" 200 " not in await ask(port, GET):
            pass

    run(work)


def test_figures_are_not_taken_more_often_than_they_change(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = 0
    time = 100.0
    monkeypatch.setattr(metrics_http, "now", lambda: time)

    def text() -> bytes:
        nonlocal taken
        taken += 1
        return b"taken %d\n" % taken

    async def work(port: int) -> None:
        nonlocal time
        for _ in range(5):
            assert b"taken 1\n" in await ask(port, GET)
        time += 2 * metrics_http.FRESH_SECONDS
        assert b"taken 2\n" in await ask(port, GET)

    run(work, text)


def test_a_close_cuts_off_who_is_connected() -> None:
    async def main() -> None:
        server = MetricsServer(asked(bytes), lambda: (True, "ok\n"))
        port = int((await server.start("127.0.0.1", 0)).rpartition(":")[2])
        async with connected(port) as (reader, _):
            assert b" 200 " in await ask(port, GET)
            await server.close()
            with suppress(ConnectionError):
                assert await reader.read() == b""
        assert await asyncio.to_thread(_is_refused, port)

    asyncio.run(main())


def _is_refused(port: int) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED
