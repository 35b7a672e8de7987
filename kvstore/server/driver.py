"""What the service is, without gRPC: from the start, over the first Attach, to the end.

Before the first Attach there is no layout, so no pools and no store (`first_attach`): an engine of an earlier
service is told that it has expired. How engines come and go is in `attaching`, what is told in `reports`.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import TypeVar

import msgspec

from kvstore.core.answers import Answer, DrainAnswer, ForgetAnswer, KeepAliveAnswer
from kvstore.core.calls import Drain, KeepAlive
from kvstore.core.errors import FieldInvalid, StoreNotMade
from kvstore.core.events import Event
from kvstore.core.notices import Happening
from kvstore.core.types import EngineState
from kvstore.observe.folder import JournalFolder
from kvstore.server.attaching import Attaching
from kvstore.server.clock import now
from kvstore.server.config import ServeConfig
from kvstore.server.decisions import list_decisions
from kvstore.server.decode import WatchCall
from kvstore.server.decode_cached import ForgetCall
from kvstore.server.draining import drain_to_disk
from kvstore.server.forgetting import forget, forget_event
from kvstore.server.gpus import Gpus
from kvstore.server.parts import Parts
from kvstore.server.reports import Reports
from kvstore.tiers.disk import DiskTier
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["Driver"]

WAIT_SECONDS_MAX = 30.0

AnswerKind = TypeVar("AnswerKind", bound=Answer)


class Driver:
    """`stop` is called when the store can't go on; `failure` then says why."""

    def __init__(
        self,
        config: ServeConfig,
        disk: DiskTier | None,
        stop: Callable[[], None],
        journal: JournalFolder | None = None,
        gpus: Gpus | None = None,
    ) -> None:
        self._parts = parts = Parts(config, disk, journal, gpus)
        self._attaching = Attaching(parts, stop)
        self.stop = stop
        self.reports = Reports(parts)
        self.store_epoch = parts.store_epoch
        self.counts = parts.counts
        self.names = parts.names
        self.health = parts.health
        self.tethers = self._attaching.tethers
        self.attach = self._attaching.attach
        self.detach = self._attaching.detach

    @property
    def failure(self) -> Exception | None:
        return self._parts.failure

    @property
    def block_bytes(self) -> int:
        """Of a block, all ranks together; 0 before the first Attach."""
        running = self._parts.running
        return running.layout.block_bytes * running.layout.ranks if running is not None else 0

    # ----------------------------------------------------------------- calls of engines

    def ask(self, event: Event, kind: type[AnswerKind]) -> AnswerKind:
        return self._parts.ask(event, kind)

    async def keep_alive(self, event: KeepAlive, wait_seconds: float) -> KeepAliveAnswer:
        """Waits for news at most so long, and no longer than half of what the lease has left."""
        answer = self.ask(event, KeepAliveAnswer)
        wait = min(wait_seconds, WAIT_SECONDS_MAX, (answer.lease_expire_time - event.time) / 2)
        if answer.notices or answer.state is not EngineState.ATTACHED or wait <= 0:
            return answer
        await self._parts.waits.wait(event.engine, wait)
        try:
            return self.ask(msgspec.structs.replace(event, time=now()), KeepAliveAnswer)
        except FieldInvalid:
            # A Step has overtaken this call, told a later completed step, and was told the news itself.
            return answer

    # -------------------------------------------------------------- calls of operators

    async def forget(self, call: ForgetCall) -> ForgetAnswer:
        """Waits until it is done, or for as long as the caller wants."""
        if self._parts.running is None:
            raise StoreNotMade(
                "what lies on disk is taken in with the first Attach, and there was none since the start",
                remedy="attach an engine, then ask again",
            )
        event = forget_event(call, self.names)
        waits = self._parts.waits
        return await forget(self._parts.running, event, call.wait_seconds, lambda: waits.is_closed)

    def update_limits(self, request: pb.UpdateLimitsRequest) -> pb.Limits:
        """All that is asked for, or a refusal; then what holds now."""
        return self._parts.limits.update(request, self._parts.running)

    def list_decisions(self, request: pb.ListDecisionsRequest) -> pb.ListDecisionsResponse:
        running = self._parts.running
        return list_decisions(request, running.explaining if running is not None else None)

    def watch(self, call: WatchCall) -> AsyncGenerator[tuple[int, list[Happening]], None]:
        return self._parts.watching.watch(call)

    async def drain_to_disk(self, seconds: float) -> tuple[int, int]:
        """Takes no new work from now on, and has what is worth keeping written: the contract's Drain.

        Blocks written meanwhile, and blocks that a restart would lose.
        """
        self.health.begin_drain()
        if self._parts.running is None:
            return 0, 0
        return await drain_to_disk(self._parts.running, seconds, goes_on=lambda: self.health.is_draining)

    def cancel_drain(self) -> None:
        self.health.end_drain()
        if self._parts.running is not None:
            self.ask(Drain(time=now(), on=False), DrainAnswer)

    # ------------------------------------------------------------------------- the end

    def end_waits(self) -> None:
        """KeepAlives that wait are answered, and later ones don't wait: the service is about to stop.
        Whoever watches is told what there is, and ends."""
        self._parts.waits.close()
        self._parts.watching.close()
        self.health.close()

    async def end_transfers(self, seconds: float) -> None:
        """Those that run, and those that follow from their ends."""
        if self._parts.running is not None:
            await self._parts.running.end_transfers(seconds)

    async def close(self, seconds: float) -> bool:
        """Ends everything but the disk, which its opener may close after this if it says True."""
        await self._attaching.close()
        self._parts.watching.close()
        if self._parts.running is None:
            return True
        ended = await self._parts.running.close(seconds)
        if ended:
            # What was learnt since they were measured.
            await asyncio.to_thread(self._parts.learnt.keep)
        return ended
