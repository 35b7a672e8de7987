"""What the service is, without gRPC: from the start, over the first Attach, to the end.

Before the first Attach there is no layout, so no pools and no store: usage shows empty tiers, and an
engine of an earlier service is told that it has expired. The first Attach makes both; what lies on
disk is fed to the store before any engine sees it.
"""

import asyncio
import logging
import secrets
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import msgspec

from kvstore import __version__
from kvstore.core import events
from kvstore.core.config import StoreConfig
from kvstore.core.effects import (
    Answer,
    AttachAnswer,
    Done,
    DrainAnswer,
    ForgetAnswer,
    Happening,
    KeepAliveAnswer,
)
from kvstore.core.errors import (
    CheckFailed,
    Draining,
    EngineExpired,
    FieldInvalid,
    LayoutMismatch,
    StoreNotMade,
)
from kvstore.core.store import Store
from kvstore.core.types import (
    EngineId,
    EngineState,
    NamespaceId,
    Pressure,
    Revision,
    StoredKey,
    StoredSession,
    TenantId,
    Tier,
    WriterId,
)
from kvstore.core.usage import TierUsage, Usage
from kvstore.observe.counting import Counts
from kvstore.observe.folder import JournalFolder
from kvstore.observe.journal import Journal
from kvstore.observe.making import heading_of
from kvstore.policy.eviction import Lru
from kvstore.policy.swap import LengthThreshold
from kvstore.server.clock import now, wall_now
from kvstore.server.config import ServeConfig
from kvstore.server.decode import AttachCall, WatchCall
from kvstore.server.decode_cached import ForgetCall
from kvstore.server.disk_size import DiskSize
from kvstore.server.encode_usage import Facts
from kvstore.server.fds import TetherServer
from kvstore.server.forgetting import forget, forget_event
from kvstore.server.health import Health
from kvstore.server.layout import Layout
from kvstore.server.learning import LearntRates
from kvstore.server.limiting import Limits
from kvstore.server.pools import FrameCounts, Pools, count_frames, make_pools, transfer_blocks
from kvstore.server.running import RunningStore
from kvstore.server.waits import Waits
from kvstore.server.watching import Watching
from kvstore.tiers.disk import DiskTier
from kvstore.tiers.names import Names
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["Attached", "Driver"]

WAIT_SECONDS_MAX = 30.0

AnswerKind = TypeVar("AnswerKind", bound=Answer)
Returned = TypeVar("Returned")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """`secrets`: one a rank, to fetch the descriptors of its pool with."""

    answer: AttachAnswer
    pools: Pools
    secrets: list[bytes]


class Driver:
    """`stop` is called when the store can't go on; `failure` then says why."""

    def __init__(
        self,
        config: ServeConfig,
        disk: DiskTier | None,
        stop: Callable[[], None],
        journal: JournalFolder | None = None,
    ) -> None:
        self.store_epoch = secrets.randbits(64)
        self.counts = Counts()
        self.tethers = TetherServer(self._tether_opened, self._tethers_closed)
        self._config = config
        self._disk = disk
        self._journal = journal
        self.names = disk.names if disk is not None else Names()
        self.health = Health(lambda: self.failure is None)
        self.stop = stop
        self._watching = Watching(self.store_epoch)
        self._waits = Waits()
        self._limits = Limits(config)
        self._learnt = LearntRates(disk, config.links)
        self._running: RunningStore | None = None
        self._making: asyncio.Task[RunningStore] | None = None
        self._start_wall = wall_now()
        self._disk_size = DiskSize(lambda: disk.held_bytes) if disk is not None else None

    @property
    def failure(self) -> Exception | None:
        return self._running.failure if self._running is not None else None

    def ask(self, event: events.Event, kind: type[AnswerKind]) -> AnswerKind:
        if self._running is None:
            raise EngineExpired("no engine has attached to this store yet", remedy="attach again")
        return self._running.ask(event, kind)

    async def attach(self, call: AttachCall) -> Attached:
        if self._running is None and self.health.is_draining:
            raise Draining("the service is about to be restarted", remedy="attach again when it has been")
        running = self._running or await self._make(call.layout)
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

    async def keep_alive(self, event: events.KeepAlive, wait_seconds: float) -> KeepAliveAnswer:
        """Waits for news at most so long, and no longer than half of what the lease has left."""
        answer = self.ask(event, KeepAliveAnswer)
        wait = min(wait_seconds, WAIT_SECONDS_MAX, (answer.lease_expire_time - event.time) / 2)
        if answer.notices or answer.state is not EngineState.ATTACHED or wait <= 0:
            return answer
        await self._waits.wait(event.engine, wait)
        try:
            return self.ask(msgspec.structs.replace(event, time=now()), KeepAliveAnswer)
        except FieldInvalid:
            # A Step has overtaken this call, told a later completed step, and was told the news itself.
            return answer

    def detach(self, event: events.Detach) -> None:
        """Of an engine that no store knows there is nothing to free."""
        if self._running is None:
            return
        self.tethers.revoke({event.engine})
        self.ask(event, Done)
        self._waits.wake(event.engine)

    async def forget(self, call: ForgetCall) -> ForgetAnswer:
        """Waits until it is done, or for as long as the caller wants."""
        if self._running is None:
            raise StoreNotMade(
                "what lies on disk is taken in with the first Attach, and there was none since the start",
                remedy="attach an engine, then ask again",
            )
        event = forget_event(call, self.names)
        return await forget(self._running, event, call.wait_seconds, lambda: self._waits.is_closed)

    @property
    def block_bytes(self) -> int:
        """Of a block, all ranks together; 0 before the first Attach."""
        layout = self._running.layout if self._running is not None else None
        return layout.block_bytes * layout.ranks if layout is not None else 0

    def usage(self) -> Usage:
        """Of the tiers that were asked for."""
        config = self._config
        sizes = {Tier.GPU: config.gpu_bytes, Tier.CPU: config.cpu_bytes, Tier.DISK: config.disk_bytes}
        if self._running is None:
            tiers = tuple(_without_frames(tier) for tier, size in sizes.items() if size)
            return Usage(revision=Revision(0), tiers=tiers, engines=())
        usage = self._running.usage()
        return msgspec.structs.replace(usage, tiers=tuple(tier for tier in usage.tiers if sizes[tier.tier]))

    @property
    def facts(self) -> Facts:
        """What is to be told beside the usage."""
        return Facts(
            store_epoch=self.store_epoch,
            build=__version__,
            start_wall=self._start_wall,
            disk_bytes=self._config.disk_bytes,
            draining=self.health.is_draining,
            disk_bytes_used=self._disk_size.read() if self._disk_size is not None else 0,
            layout=self._running.layout if self._running is not None else None,
            disk=self._disk,
            limits=self._limits.links,
            rates=self._learnt.rates,
            movers=self._running.movers if self._running is not None else {},
        )

    def update_limits(self, request: pb.UpdateLimitsRequest) -> pb.Limits:
        """All that is asked for, or a refusal; then what holds now."""
        return self._limits.update(request, self._running)

    def health_text(self) -> tuple[bool, str]:
        """Whether engines are served, and what there is to say, a line each."""
        if self.failure is not None:
            return False, f"failed: {self.failure}\n"
        lines = ["ok" if self.health.is_serving else "not serving"]
        if self.health.is_draining:
            lines.append("draining: no new work is taken")
        if self._running is None:
            lines.append("no engine has attached yet")
        if self._disk is not None and self._disk.degraded:
            lines.append(f"disk degraded: {self._disk.degraded_reason}")
        return self.health.is_serving, "\n".join(lines) + "\n"

    def watch(self, call: WatchCall) -> AsyncGenerator[tuple[int, list[Happening]], None]:
        return self._watching.watch(call)

    async def drain_to_disk(self, seconds: float) -> tuple[int, int]:
        """Takes no new work from now on, and has what is worth keeping written: the contract's Drain.

        Blocks written meanwhile, and blocks that a restart would lose.
        """
        self.health.begin_drain()
        if self._running is None:
            return 0, 0
        return await self._running.drain_to_disk(seconds, goes_on=lambda: self.health.is_draining)

    def cancel_drain(self) -> None:
        self.health.end_drain()
        if self._running is not None:
            self._running.ask(events.Drain(time=now(), on=False), DrainAnswer)

    def end_waits(self) -> None:
        """KeepAlives that wait are answered, and later ones don't wait: the service is about to stop.
        Whoever watches is told what there is, and ends."""
        self._waits.close()
        self._watching.close()
        self.health.close()

    async def drain(self, seconds: float) -> None:
        if self._running is not None:
            await self._running.drain(seconds)

    async def close(self, seconds: float) -> bool:
        """Ends everything but the disk, which its opener may close after this if it says True."""
        if self._making is not None:
            self._making.cancel()
            await asyncio.wait([self._making])
        self._watching.close()
        await self.tethers.close()
        if self._running is None:
            return True
        ended = await self._running.close(seconds)
        if ended:
            # What was learnt since they were measured.
            await asyncio.to_thread(self._learnt.keep)
        return ended

    # --- The first Attach.

    async def _make(self, layout: Layout) -> RunningStore:
        """All who attach meanwhile wait for the same; it goes on when the deadline of a caller has passed."""
        frames = count_frames(self._config, layout, self._disk)
        if self._making is None:
            self._making = asyncio.create_task(self._run(layout, frames))
            self._making.add_done_callback(self._made)
        return await asyncio.shield(self._making)

    def _made(self, making: asyncio.Task[RunningStore]) -> None:
        self._making = None
        # All callers may have gone meanwhile; then nobody else has looked at the error.
        if not making.cancelled() and (error := making.exception()) is not None:
            log.warning("no pools were made: %s", error)

    async def _run(self, layout: Layout, frames: FrameCounts) -> RunningStore:
        pools = await make_pools(layout, frames)
        try:
            found, sessions = await _in_thread(partial(_find_stored, self._disk, layout))
            # Before any engine has a frame: none is in use yet.
            room = max(0, frames.disk - len(found))
            await _in_thread(
                partial(self._learnt.learn, pools, self._namespace(layout), self._calibrator, room)
            )
            store_config = self._store_config(layout, frames)
            eviction, swap = Lru(), LengthThreshold(self._config.drop_tokens_max)
            running = RunningStore(
                layout=layout,
                store=Store(store_config, eviction, swap),
                pools=pools,
                disk=self._disk,
                waits=self._waits,
                counts=self.counts,
                watched=self._watching.events,
                rates=self._learnt.rates,
                limits=self._limits.links,
                failed=self._store_failed,
            )
        except BaseException:
            pools.close()
            raise
        self._running = running
        if self._journal is not None:
            heading = heading_of(
                store_config,
                eviction,
                swap,
                build=__version__,
                store_epoch=self.store_epoch,
                start_time=now(),
                start_wall=wall_now(),
            )
            running.journal = Journal(self._journal, heading)
        self._watching.begin_store(running)
        running.ask(events.BlocksFound(time=now(), blocks=found, sessions=sessions), Done)
        self._limits.begin(running)
        if self.health.is_draining:
            running.ask(events.Drain(time=now()), DrainAnswer)
        if self._disk is not None and self._config.scrub_bytes:
            self._disk.start_scrub(running.lost_in_thread, self._config.scrub_bytes)
        self.tethers.serve_pools(pools.gpu.fds)
        return running

    def _store_failed(self) -> None:
        self.health.changed()
        self.stop()

    def _store_config(self, layout: Layout, frames: FrameCounts) -> StoreConfig:
        config = self._config
        return StoreConfig(
            block_tokens=layout.block_tokens,
            gpu_frames=frames.gpu,
            cpu_frames=frames.cpu,
            disk_frames=frames.disk,
            tenants={name: self.names.tenant_id(name) for name in config.tenants},
            default_tenant=config.tenants[0],
            engines_max=config.engines_max,
            lease_seconds_max=config.lease_seconds,
            high_watermark=config.high_watermark,
            low_watermark=config.low_watermark,
            cpu_high_watermark=config.cpu_high_watermark,
            cpu_low_watermark=config.cpu_low_watermark,
            transfer_blocks_max=transfer_blocks(layout),
            retained_blocks_max=config.retain_bytes // (layout.block_bytes * layout.ranks),
        )

    @property
    def _calibrator(self) -> tuple[TenantId, WriterId]:
        """As whom blocks are written to try the disk."""
        return self.names.tenant_id(self._config.tenants[0]), self.names.writer_id("calibration", __version__)

    def _namespace(self, layout: Layout) -> NamespaceId:
        return self.names.namespace_id(
            layout.fingerprint, layout.block_bytes, layout.block_tokens, layout.ranks, layout.description
        )

    def _attach_event(self, call: AttachCall) -> events.Attach:
        engine = EngineId(str(uuid.uuid4()))
        longest = self._config.lease_seconds
        return events.Attach(
            time=now(),
            engine=engine,
            request_id=call.request_id,
            namespace=self._namespace(call.layout),
            writer=self.names.writer_id(engine, call.build),
            build=call.build,
            lease_seconds=min(call.lease_seconds or longest, longest),
        )

    # --- Tethers.

    def _attached(self) -> set[EngineId]:
        return {each.engine for each in self.usage().engines if each.state is EngineState.ATTACHED}

    def _tether_opened(self, engine: EngineId, pid: int) -> None:
        # A secret may outlive its engine. Whoever maps then would hold frames that nobody knows of.
        if engine not in self._attached():
            raise EngineExpired("the engine is gone", field="engine", value=engine, remedy="attach again")
        self.ask(events.TetherOpened(time=now(), engine=engine, pid=pid), Done)

    def _tethers_closed(self, engine: EngineId) -> None:
        # A store that is stopping has no use for it.
        with suppress(CheckFailed):
            self.ask(events.TethersClosed(time=now(), engine=engine), Done)


async def _in_thread(call: Callable[[], Returned]) -> Returned:
    """What a thread works on outlives it: who is cancelled meanwhile waits for its end all the same."""
    running = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


def _find_stored(
    disk: DiskTier | None, layout: Layout
) -> tuple[tuple[StoredKey, ...], tuple[StoredSession, ...]]:
    if disk is None:
        return (), ()
    disk.lay_out(layout.block_bytes, layout.ranks)
    return tuple(disk.found(layout.block_bytes * layout.ranks)), tuple(disk.sessions())


def _without_frames(tier: Tier) -> TierUsage:
    return TierUsage(
        tier=tier,
        frames_total=0,
        frames_free=0,
        frames_cached=0,
        frames_pinned=0,
        frames_quarantined=0,
        pressure=Pressure.LOW,
        blocks_moved_in=0,
        blocks_failed=0,
        blocks_evicted=0,
    )
