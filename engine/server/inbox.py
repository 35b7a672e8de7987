"""What the engine's thread has to tell to the task of one request.

The thread never waits: what a slow reader has not taken yet is put together, so that it holds one entry an
answer at the most, and a wake-up is asked for only where none is under way.
Tests: tests/engine/server/test_inbox.py.
"""

import asyncio
import contextlib
import threading
from dataclasses import dataclass, field
from enum import Enum, auto

__all__ = ["End", "Inbox", "News"]


class End(Enum):
    """Why no more tokens of an answer come."""

    STOP = auto()  # The model has ended it.
    LENGTH = auto()  # It has all the tokens that it may have.
    FAILED = auto()  # The engine can't compute it.
    LATE = auto()  # Of the request: its time is over.
    CLOSED = auto()  # Of the request: the server stops, or the engine has failed.


@dataclass(slots=True)
class News:
    """Of one answer, since it was last told of."""

    tokens: list[int] = field(default_factory=list)
    # Leading tokens of the prompt that were found in the cache.
    cached_tokens: int = 0
    end: End | None = None
    reason: str = ""


class Inbox:
    """Filled by one thread, read by one task of the event loop that it was made in."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._lock = threading.Lock()
        self._news: dict[int, News] = {}
        self._end: End | None = None

    def put(self, answer: int, news: News) -> None:
        with self._lock:
            if self._end is not None:
                return
            is_first = not self._news
            kept = self._news.setdefault(answer, news)
            if kept is not news:
                kept.tokens += news.tokens
                kept.cached_tokens, kept.end, kept.reason = news.cached_tokens, news.end, news.reason
        if is_first:
            self._wake()

    def end(self, end: End) -> None:
        """Of all answers: nothing more comes after what is here already. From any thread."""
        with self._lock:
            self._end = self._end or end
        self._wake()

    async def take(self) -> dict[int, News]:
        """News by answer; waits until there are any. After `end`, when all is taken, that is the news."""
        await self._event.wait()
        with self._lock:
            news, self._news = self._news, {}
            if self._end is None:
                self._event.clear()
            elif not news:
                news = {0: News(end=self._end)}
        return news

    def _wake(self) -> None:
        # A loop that is closed has no reader either.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._event.set)
