"""HTTP connections that hold nothing for ever: uvicorn's protocol with three bounds more.

How many connections there are; how long one may send without a whole head of a request having come (the
body's time is `body.py`'s); and how long one may take nothing of what is being sent to it.
Tests: tests/engine/server/test_connections.py.
"""

import asyncio
import logging
import math

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from engine.server.limits import Limits

__all__ = ["protocol_with"]

# What is met with each connection is told no more often.
TELL_SECONDS = 60.0

log = logging.getLogger(__name__)


def protocol_with(limits: Limits) -> type[asyncio.Protocol]:
    """uvicorn makes the connections itself, so the bounds are the class's."""

    class Bounded(_BoundedProtocol):
        bounds = limits

    return Bounded


class _BoundedProtocol(H11Protocol):
    bounds: Limits
    # By the loop's time: of all connections of a server.
    tell_from = -math.inf
    _receiving: asyncio.TimerHandle | None = None
    _sending: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.bounds.connections:
            self._tell_full()
            transport.abort()
        else:
            self._receiving = self.loop.call_later(self.bounds.receive_seconds, transport.abort)

    def _tell_full(self) -> None:
        """Those who are turned away see a reset and nothing else, so the log says why, now and then."""
        kind, now = type(self), self.loop.time()
        if now >= kind.tell_from:
            kind.tell_from = now + TELL_SECONDS
            log.warning(
                "all %d connections that may be open are, and more are closed at once (--connections)",
                self.bounds.connections,
            )

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # uvicorn has none before the first request, whatever its types say.
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            _stop(self._receiving)
            self._receiving = None
        elif self._receiving is None:
            # Since a request has ended; more data does not prolong it.
            self._receiving = self.loop.call_later(self.bounds.receive_seconds, self.transport.abort)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._sending = self.loop.call_later(self.bounds.send_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        _stop(self._sending)
        self._sending = None

    def connection_lost(self, exc: Exception | None) -> None:
        _stop(self._receiving)
        _stop(self._sending)
        super().connection_lost(exc)


def _stop(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
