"""How engines come and go: Attach, Detach, secrets that open the pools, tethers whose end is an engine's."""

import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from kvstore.core.answers import AttachAnswer, Done
from kvstore.core.calls import Attach, Detach
from kvstore.core.errors import CheckFailed, Draining, EngineExpired, LayoutMismatch
from kvstore.core.events import TetherOpened, TethersClosed
from kvstore.core.types import EngineId, EngineState
from kvstore.server.clock import now
from kvstore.server.decode import AttachCall
from kvstore.server.fds import TetherServer
from kvstore.server.first_attach import FirstAttach
from kvstore.server.parts import Parts
from kvstore.server.pools import Pools

__all__ = ["Attached", "Attaching"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """`secrets`: one a rank, to fetch the descriptors of its pool with."""

    answer: AttachAnswer
    pools: Pools
    secrets: list[bytes]


class Attaching:
    """`stop` is called when the store can't go on."""

    def __init__(self, parts: Parts, stop: Callable[[], None]) -> None:
        self.tethers = TetherServer(self._tether_opened, self._tethers_closed)
        self._parts = parts
        self._first = FirstAttach(parts, self.tethers.serve_pools, stop)

    async def attach(self, call: AttachCall) -> Attached:
        running = self._parts.running
        if running is None and self._parts.health.is_draining:
            raise Draining("the service is about to be restarted", remedy="attach again when it has been")
        running = running or await self._first.store(call.layout)
        if call.layout.sizes != running.layout.sizes:
            raise LayoutMismatch(
                f"the pools of this service were made for {running.layout}",
                field="layout",
                value=call.layout,
                remedy="use those sizes, or a service of its own for this model",
            )
        answer = running.ask(self._attach_event(call), AttachAnswer)
        # Secrets end with their engine; here, so that they are never more than one set an attached engine.
        self.tethers.revoke(self.tethers.engines - self._attached())
        return Attached(answer=answer, pools=running.pools, secrets=self.tethers.issue(answer.engine))

    def detach(self, event: Detach) -> None:
        """Of an engine that no store knows there is nothing to free."""
        if self._parts.running is None:
            return
        self.tethers.revoke({event.engine})
        self._parts.ask(event, Done)
        self._parts.waits.wake(event.engine)

    async def close(self) -> None:
        await self._first.close()
        await self.tethers.close()

    def _attach_event(self, call: AttachCall) -> Attach:
        engine = EngineId(str(uuid.uuid4()))
        longest = self._parts.config.lease_seconds
        return Attach(
            time=now(),
            engine=engine,
            request_id=call.request_id,
            namespace=self._parts.namespace(call.layout),
            writer=self._parts.names.writer_id(engine, call.build),
            build=call.build,
            lease_seconds=min(call.lease_seconds or longest, longest),
        )

    def _attached(self) -> set[EngineId]:
        running = self._parts.running
        engines = running.usage().engines if running is not None else ()
        return {each.engine for each in engines if each.state is EngineState.ATTACHED}

    def _tether_opened(self, engine: EngineId, pid: int) -> None:
        # A secret may outlive its engine. Whoever maps then would hold frames that nobody knows of.
        if engine not in self._attached():
            raise EngineExpired("the engine is gone", field="engine", value=engine, remedy="attach again")
        self._parts.ask(TetherOpened(time=now(), engine=engine, pid=pid), Done)

    def _tethers_closed(self, engine: EngineId) -> None:
        # A store that is stopping has no use for it.
        with suppress(CheckFailed):
            self._parts.ask(TethersClosed(time=now(), engine=engine), Done)
