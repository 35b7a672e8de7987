"""The beat of a running store: what it does by itself as time passes."""

import asyncio
from collections.abc import Callable

__all__ = ["LOOK_TICKS", "TICK_SECONDS", "Beat"]

TICK_SECONDS = 0.1
# So often one of so many: what engines compute on the same cores waits for it.
LOOK_TICKS = 10


class Beat:
    """From the next turn of the loop on calls `tick` ten times a second, and `look` once, for what need not
    be so often. Neither may raise."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, tick: Callable[[], None], look: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._tick, self._look = tick, look
        self._ticks = 0
        self._next: asyncio.Handle = loop.call_soon(self._beat)

    def end(self) -> None:
        self._next.cancel()

    def _beat(self) -> None:
        self._next = self._loop.call_later(TICK_SECONDS, self._beat)
        if self._ticks % LOOK_TICKS == 0:
            self._look()
        self._ticks += 1
        self._tick()
