"""Metrics and health over HTTP, on loopback alone: GET /metrics, GET /healthz, and nothing else.

It runs in the service's event loop, so it is short and all of it is bounded: connections, the bytes of a
request, the time that either may take, and how often figures are taken anew, however many ask.
"""

import asyncio
import ipaddress
import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NoReturn

from prometheus_client import CONTENT_TYPE_LATEST

from kvstore.core.errors import ConfigInvalid
from kvstore.server.clock import now

__all__ = ["FRESH_SECONDS", "MetricsServer", "parse_metrics_address"]

CONNECTIONS_MAX = 16
HEAD_BYTES_MAX = 8 << 10
SECONDS_MAX = 5.0
# Of the text; a scrape more often than this gets the one before.
FRESH_SECONDS = 0.05

TEXT_TYPE = "text/plain; charset=utf-8"
REASONS = {
    200: "OK",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
REQUEST = re.compile(rb"([A-Z]+) (/[!-~]*) HTTP/1\.[01]")

log = logging.getLogger(__name__)


def parse_metrics_address(text: str) -> tuple[str, int]:
    """`9464`, `127.0.0.1:9464`, `localhost:9464` or `[::1]:9464`; port 0: one that is free."""
    host, colon, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if colon else "127.0.0.1"
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65_535):
        _refuse(text, "no port", "give a port, like 9464 or 127.0.0.1:9464; 0 for any that is free")
    if not _is_loopback(host):
        remedy = "give a port alone, or 127.0.0.1:PORT; from elsewhere it is reached by a tunnel or a proxy"
        _refuse(text, "only loopback is listened on: nobody is asked who they are", remedy)
    return "127.0.0.1" if host == "localhost" else host, int(port)


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _refuse(text: str, message: str, remedy: str) -> NoReturn:
    raise ConfigInvalid(message, field="--metrics", value=text, remedy=remedy)


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: bytes
    type: str = TEXT_TYPE

    def to_bytes(self, *, with_body: bool) -> bytes:
        head = (
            f"HTTP/1.1 {self.status} {REASONS[self.status]}\r\n"
            f"Content-Type: {self.type}\r\nContent-Length: {len(self.body)}\r\n"
            "Cache-Control: no-store\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + (self.body if with_body else b"")


class MetricsServer:
    """`text` is the exposition; `health` says whether engines are served, and what there is to tell."""

    def __init__(self, text: Callable[[], Awaitable[bytes]], health: Callable[[], tuple[bool, str]]) -> None:
        self._text = text
        self._health = health
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self._told = b""
        self._told_time: float | None = None

    async def start(self, host: str, port: int) -> str:
        """Listens, and returns where: its URL."""
        try:
            self._server = await asyncio.start_server(
                self._serve, host, port, limit=HEAD_BYTES_MAX, backlog=CONNECTIONS_MAX
            )
        except OSError as error:
            remedy = "choose another port, or 0 for any that is free"
            text = f"can't listen: {error.strerror or error}"
            raise ConfigInvalid(text, field="--metrics", value=f"{host}:{port}", remedy=remedy) from error
        address = self._server.sockets[0].getsockname()
        return f"http://{f'[{host}]' if ':' in host else host}:{address[1]}"

    async def close(self) -> None:
        if self._server is None:
            return
        self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        await self._server.wait_closed()
        # What was cut off is closed by the loop.
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(self._open) >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        self._open.add(task)
        try:
            async with asyncio.timeout(SECONDS_MAX):
                writer.write(await self._read_and_answer(reader))
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, ConnectionError, asyncio.CancelledError):
            # Whether it never asked or never reads: nothing of it is kept.
            writer.transport.abort()
        except Exception:
            log.exception("a request for metrics failed")
            writer.transport.abort()
        finally:
            self._open.discard(task)

    async def _read_and_answer(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _Answer(431, b"the request is too long\n").to_bytes(with_body=True)
        except asyncio.IncompleteReadError:
            return b""
        line, _, fields = head.partition(b"\r\n")
        match = REQUEST.fullmatch(line)
        if match is None:
            return _Answer(400, b"not an HTTP request\n").to_bytes(with_body=True)
        method, target = match[1], match[2].decode().partition("?")[0]
        if not _asks_loopback(fields):
            # A page in a browser that has had its own name resolve to this machine.
            return _Answer(403, b"ask for a loopback address\n").to_bytes(with_body=True)
        if method not in (b"GET", b"HEAD"):
            return _Answer(405, b"GET alone\n").to_bytes(with_body=True)
        return (await self._answer(target)).to_bytes(with_body=method == b"GET")

    async def _answer(self, target: str) -> _Answer:
        if target == "/healthz":
            good, text = self._health()
            return _Answer(200 if good else 503, text.encode(errors="replace"))
        if target != "/metrics":
            return _Answer(404, b"there are /metrics and /healthz\n")
        try:
            return _Answer(200, await self._fresh_text(), CONTENT_TYPE_LATEST)
        except Exception:
            log.exception("metrics can't be told")
            return _Answer(500, b"the metrics can't be told; see the log\n")

    async def _fresh_text(self) -> bytes:
        time = now()
        if self._told_time is None or time - self._told_time >= FRESH_SECONDS:
            self._told = await self._text()
            self._told_time = time
        return self._told


def _asks_loopback(fields: bytes) -> bool:
    """Whether the Host, if there is one, is this machine by address or as localhost."""
    for line in fields.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"host":
            text = value.strip().decode(errors="replace")
            host = text.rpartition(":")[0] if re.search(r":[0-9]+$", text) else text
            return _is_loopback(host.removeprefix("[").removesuffix("]"))
    return True
