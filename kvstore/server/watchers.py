"""Streams that wait for something to change: a bounded number, woken together, and each looks for itself.

They live on the event loop and have no queues: what a stream has still to be told is kept elsewhere, once for
all, so that a slow one costs nothing but its place.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from kvstore.server.calls import Stopped
from kvstore.server.errors import TooManyStreams

__all__ = ["Watchers"]


class Watchers:
    def __init__(self, most: int) -> None:
        self.count = 0
        self._most = most
        self._waiting: set[asyncio.Future[None]] = set()
        self._closed = False

    @contextmanager
    def place(self) -> Iterator[None]:
        if self.count >= self._most:
            raise TooManyStreams(f"{self._most} watch already", remedy="end one, or try again later")
        self.count += 1
        try:
            yield
        finally:
            self.count -= 1

    async def change(self) -> None:
        """Until somebody says that something has changed. Whoever has looked and awaits this at once misses
        nothing. Raises `Stopped` at the end."""
        if self._closed:
            raise Stopped
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(woken)
        try:
            await woken
        finally:
            self._waiting.discard(woken)

    def wake(self) -> None:
        for woken in self._waiting:
            # One that has been cancelled is still here until its task has run.
            if not woken.done():
                woken.set_result(None)

    def close(self) -> None:
        """All look once more, and end."""
        self._closed = True
        self.wake()
