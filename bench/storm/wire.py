"""HTTP as bad clients speak it: bodies that break off, connections cut, answers read drop by drop."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from typing import Any, cast
from urllib.parse import urlsplit

import h11

__all__ = ["Line", "NothingCame"]

# For whatever comes next; so long that only what never comes takes as long.
PATIENCE_SECONDS = 300.0
DROP_BYTES, DROP_SECONDS = 200, 0.004


class NothingCame(Exception):
    """The server has left somebody waiting."""


class Line:
    """One connection, for one request after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_slow: bool) -> None:
        self._reader, self._writer = reader, writer
        self._is_slow = is_slow
        self._http = h11.Connection(h11.CLIENT)

    @classmethod
    async def open(cls, url: str, *, is_slow: bool = False) -> "Line":
        place = urlsplit(url)
        end = socket.socket()
        end.setblocking(False)
        if is_slow:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        try:
            await asyncio.get_running_loop().sock_connect(end, (place.hostname, place.port))
            limit = DROP_BYTES if is_slow else 1 << 16
            reader, writer = await asyncio.open_connection(sock=end, limit=limit)
        except BaseException:
            end.close()
            raise
        return cls(reader, writer, is_slow=is_slow)

    @property
    def can_go_on(self) -> bool:
        """Whether another request may be sent."""
        states = (self._http.our_state, self._http.their_state)
        return states in ((h11.DONE, h11.DONE), (h11.IDLE, h11.IDLE))

    async def send(self, path: str, body: dict[str, Any] | bytes, *, share: float = 1.0) -> None:
        """`share`: of the body, with a length that speaks of all of it."""
        if self._http.our_state is h11.DONE:
            self._http.start_next_cycle()
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = [
            ("host", "localhost"),
            ("content-type", "application/json"),
            ("content-length", str(len(content))),
        ]
        self._write(h11.Request(method="POST", target=path, headers=headers))
        self._write(h11.Data(data=content[: int(len(content) * share)]))
        if share == 1.0:
            self._write(h11.EndOfMessage())
        await self._writer.drain()

    async def status(self) -> int:
        """Waits for the head of the answer."""
        event = await self._next()
        if not isinstance(event, h11.Response):
            raise ConnectionError(f"the server has sent {type(event).__name__} and no answer")
        return event.status_code

    async def pieces(self) -> AsyncIterator[bytes]:
        """Of the answer's body, as they come; ends where the answer does."""
        while isinstance(event := await self._next(), h11.Data):
            yield bytes(event.data)
        if not isinstance(event, h11.EndOfMessage):
            raise ConnectionError("the answer has broken off")

    async def close(self, *, is_cut: bool = False) -> None:
        """`is_cut`: by a reset, as when a machine dies."""
        if is_cut:
            cast(asyncio.Transport, self._writer.transport).abort()
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    def _write(self, event: h11.Event) -> None:
        self._writer.write(self._http.send(event) or b"")

    async def _next(self) -> h11.Event | type[h11.PAUSED]:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            if self._is_slow:
                await asyncio.sleep(DROP_SECONDS)
            try:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    data = await self._reader.read(DROP_BYTES if self._is_slow else 1 << 16)
            except TimeoutError:
                raise NothingCame(f"nothing has come for {PATIENCE_SECONDS:g} seconds") from None
            try:
                self._http.receive_data(data)
            except h11.RemoteProtocolError as error:
                raise ConnectionError(str(error)) from error
        return cast(h11.Event, event)
