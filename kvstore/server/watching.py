"""Who watches events: told from the store's first event on, or from when the first watcher came.

The store tells nothing while nobody watches. It goes on for a while when the last one has gone, so that
who comes back with its last revision has missed nothing.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from kvstore.core.answers import Done, KeepAliveAnswer
from kvstore.core.calls import KeepAlive, Watch
from kvstore.core.errors import CheckFailed, EngineExpired, RevisionCompacted
from kvstore.core.notices import Happening
from kvstore.core.types import Revision, StepNumber
from kvstore.server.clock import now
from kvstore.server.decode import WatchCall
from kvstore.server.encode_events import concerns
from kvstore.server.events import Events
from kvstore.server.running import RunningStore

__all__ = ["Watching"]

LINGER_SECONDS = 60.0


class Watching:
    def __init__(self, store_epoch: int) -> None:
        self.events = Events()
        self._store_epoch = store_epoch
        self._store: RunningStore | None = None
        self._end_timer: asyncio.TimerHandle | None = None

    def begin_store(self, store: RunningStore) -> None:
        """Before its first event."""
        self._store = store
        if self.events.is_on:
            store.ask(Watch(time=now(), on=True), Done)

    async def watch(self, call: WatchCall) -> AsyncGenerator[tuple[int, list[Happening]], None]:
        """Events in batches, each with the revision up to which it goes; the first batch is empty."""
        with self.events.place():
            try:
                self._begin()
                self._check(call)
                async with aclosing(self.events.read(call.start_revision)) as batches:
                    async for revision, happened in batches:
                        told = [each for each in happened if not call.engine or concerns(each, call.engine)]
                        if told or not happened:
                            yield revision, told
            finally:
                if self.events.watcher_count == 1:
                    loop = asyncio.get_running_loop()
                    self._end_timer = loop.call_later(LINGER_SECONDS, self._end)

    def close(self) -> None:
        """Whoever watches is told what there is, and ends."""
        self.events.close()
        if self._end_timer is not None:
            self._end_timer.cancel()

    def _check(self, call: WatchCall) -> None:
        if call.engine:
            if self._store is None:
                raise EngineExpired("no engine has attached to this store yet", remedy="attach again")
            # Any call that names an engine renews its lease. An older completed step is no news.
            renewal = KeepAlive(time=now(), engine=call.engine, completed_step=StepNumber(0))
            self._store.ask(renewal, KeepAliveAnswer)
        if call.store_epoch not in (0, self._store_epoch):
            raise RevisionCompacted(
                "the store has been started anew since",
                field="store_epoch",
                value=f"{call.store_epoch:016x}",
                remedy="read GetUsage, then watch from now (start_revision 0)",
            )

    def _begin(self) -> None:
        if self._end_timer is not None:
            self._end_timer.cancel()
            self._end_timer = None
        if self.events.is_on:
            return
        if self._store is None:
            self.events.begin(Revision(0))
            return
        self._store.ask(Watch(time=now(), on=True), Done)
        self.events.begin(self._store.revision)

    def _end(self) -> None:
        self._end_timer = None
        if self._store is not None:
            # A store that has failed tells nothing any more as it is.
            with suppress(CheckFailed):
                self._store.ask(Watch(time=now(), on=False), Done)
        self.events.end()
