"""The HTTP beside the service by itself, and who asks it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from kvstore.server.metrics_http import MetricsServer
from tests.server.harness import DEADLINE_SECONDS

__all__ = ["GET", "ask", "asked", "connected", "run"]

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
