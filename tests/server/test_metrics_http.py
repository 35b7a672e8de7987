"""The HTTP beside the service: loopback alone, two paths, and nobody who asks it can hold anything up."""

import asyncio
import errno
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import psutil
import pytest

from kvstore.core.errors import CheckFailed, ConfigInvalid
from kvstore.server import metrics_http
from kvstore.server.driver import Driver
from kvstore.server.metrics_http import CONNECTIONS_MAX, MetricsServer, parse_metrics_address
from kvstore.v1 import kvstore_pb2 as pb
from tests.server.driving import config_for
from tests.server.harness import DEADLINE_SECONDS, Engine, Service, allocate, until
from tests.server.scraping import get, port_of, scrape

Work = Callable[[int], Awaitable[None]]

GET = b"GET /metrics HTTP/1.1\r\nHost: localhost:1\r\n\r\n"


def run(work: Work, text: Callable[[], bytes] = lambda: b"up 1\n") -> None:
    async def main() -> None:
        server = MetricsServer(asked(text), lambda: (True, "ok\n"))
        url = await server.start("127.0.0.1", 0)
        try:
            await asyncio.wait_for(work(int(url.rpartition(":")[2])), DEADLINE_SECONDS)
        finally:
            await server.close()

    asyncio.run(main())


def asked(text: Callable[[], bytes]) -> Callable[[], Awaitable[bytes]]:
    async def ask() -> bytes:
        return text()

    return ask


async def ask(port: int, request: bytes) -> bytes:
    """All that is answered until the server closes; nothing where it cuts the connection off."""
    async with connected(port) as (reader, writer):
        try:
            writer.write(request)
            return await reader.read()
        except ConnectionError:
            return b""


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


# --------------------------------------------------------------------------------- where


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9464", ("127.0.0.1", 9464)),
        ("0", ("127.0.0.1", 0)),
        ("127.0.0.1:9464", ("127.0.0.1", 9464)),
        ("127.8.9.1:1", ("127.8.9.1", 1)),
        ("localhost:65535", ("127.0.0.1", 65_535)),
        ("[::1]:9464", ("::1", 9464)),
    ],
)
def test_loopback_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_metrics_address(text) == address


@pytest.mark.parametrize(
    "text",
    [
        "0.0.0.0:9464",
        "[::]:9464",
        ":9464",
        "*:9464",
        "192.168.1.7:9464",
        "example.com:80",
        "[::ffff:1.2.3.4]:1",
    ],
)
def test_8_09_other_interfaces_are_refused(text: str) -> None:
    with pytest.raises(ConfigInvalid, match=r"--metrics = .*loopback.*127\.0\.0\.1:PORT"):
        parse_metrics_address(text)


@pytest.mark.parametrize("text", ["", "65536", "-1", "nine", "127.0.0.1:", "127.0.0.1:+80", "1e3", "٣"])
def test_what_is_no_port_is_refused(text: str) -> None:
    with pytest.raises(ConfigInvalid, match="no port"):
        parse_metrics_address(text)


def test_a_port_that_is_taken_is_refused() -> None:
    async def main() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            with pytest.raises(ConfigInvalid, match=rf"--metrics = 127\.0\.0\.1:{port}.*another port"):
                await MetricsServer(asked(bytes), lambda: (True, "")).start("127.0.0.1", port)

    asyncio.run(main())


# ---------------------------------------------------------------------------------- what


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


# -------------------------------------------------------------------------- the real one


def test_the_service_listens_on_loopback_alone(make_service) -> None:
    service: Service = make_service("--metrics", "localhost:0").start()
    assert service.process is not None
    listening = [
        each.laddr.ip
        for each in psutil.Process(service.process.pid).net_connections("inet")
        if each.status == psutil.CONN_LISTEN
    ]
    assert listening == ["127.0.0.1"]


def test_without_the_flag_nothing_listens(service: Service) -> None:
    assert service.process is not None
    assert psutil.Process(service.process.pid).net_connections("inet") == []


def test_who_hangs_on_to_connections_holds_no_engine_up(make_service) -> None:
    service: Service = make_service("--metrics", "0").start()
    with service.stub() as stub, Engine(stub) as engine:
        idle = [socket.create_connection(("127.0.0.1", port_of(service))) for _ in range(CONNECTIONS_MAX)]
        for number in range(50):
            assert engine.step(allocate(1, 4 + number // 4)).step == number + 1
        for each in idle:
            each.close()
        until(lambda: get(port_of(service), "/metrics").status, lambda status: status == 200)
        assert scrape(service)["kvstore_steps_total"] == 50


def test_health_of_the_service(make_service) -> None:
    service: Service = make_service("--metrics", "0").start()
    port = port_of(service)
    answer = get(port, "/healthz")
    assert (answer.status, answer.text) == (200, "ok\nno engine has attached yet\n")
    with service.stub() as stub, Engine(stub):
        assert get(port, "/healthz").text == "ok\n"
        stub.Drain(pb.DrainRequest(), timeout=DEADLINE_SECONDS)
        answer = get(port, "/healthz")
        assert (answer.status, answer.text) == (503, "not serving\ndraining: no new work is taken\n")
        stub.Drain(pb.DrainRequest(cancel=True), timeout=DEADLINE_SECONDS)
        assert get(port, "/healthz").status == 200
    assert service.end(signal.SIGTERM) == 0
    with pytest.raises(ConnectionError):
        get(port, "/healthz")


def test_health_after_a_bug(folder: Path) -> None:
    async def main() -> None:
        driver = Driver(config_for(folder), None, lambda: None)
        assert driver.reports.health_page() == (True, "ok\nno engine has attached yet\n")

        class Failed:
            failure = CheckFailed("a frame was given back twice")

        driver._parts.running = Failed()  # type: ignore[assignment]
        assert driver.reports.health_page() == (False, "failed: a frame was given back twice\n")
        driver._parts.running = None
        await driver.close(1.0)

    asyncio.run(main())


def test_the_flag_is_refused_by_the_program(make_service, folder: Path) -> None:
    service: Service = make_service("--metrics", "0.0.0.0:9464")
    with pytest.raises(AssertionError):
        service.start()
    assert "kvstore: --metrics = 0.0.0.0:9464: only loopback is listened on" in service.log
    assert service.process is not None
    assert service.process.wait(DEADLINE_SECONDS) == 2
    service.process = None
