"""KeepAlives that wait for news: a bounded number an engine, each woken at most once."""

import asyncio
from collections import defaultdict

from kvstore.core.types import EngineId

__all__ = ["Waits"]

# More of one engine than this: the oldest is answered without news, so that waiting takes no place for ever.
WAITS_PER_ENGINE_MAX = 4


class Waits:
    def __init__(self) -> None:
        self._waiting: defaultdict[EngineId, list[asyncio.Future[None]]] = defaultdict(list)
        self._closed = False

    @property
    def is_closed(self) -> bool:
        return self._closed

    async def wait(self, engine: EngineId, seconds: float) -> None:
        """Until the engine has news, or the time is up."""
        if self._closed:
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting[engine]
        waiting.append(woken)
        if len(waiting) > WAITS_PER_ENGINE_MAX:
            waiting.pop(0).set_result(None)
        try:
            await asyncio.wait([woken], timeout=seconds)
        finally:
            # Whoever is woken is taken off the list then.
            if woken in waiting:
                waiting.remove(woken)
            if not waiting and self._waiting.get(engine) is waiting:
                del self._waiting[engine]

    def wake(self, engine: EngineId) -> None:
        for woken in self._waiting.pop(engine, ()):
            woken.set_result(None)

    def close(self) -> None:
        """Wakes all; nobody waits from here on."""
        self._closed = True
        for engine in list(self._waiting):
            self.wake(engine)
