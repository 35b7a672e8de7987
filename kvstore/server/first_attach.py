"""The first Attach makes the pools and the store, and all that both need; others meanwhile wait for it.

The links are measured while no frame is in use yet, and what lies on disk is fed to the store before any
engine sees it.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from kvstore import __version__
from kvstore.core.answers import Done, DrainAnswer
from kvstore.core.calls import Drain
from kvstore.core.config import COPY_FROM_SHARE, StoreConfig, transfer_blocks, write_blocks
from kvstore.core.events import BlocksFound
from kvstore.core.store import Store
from kvstore.core.types import StoredKey, StoredSession
from kvstore.observe.journal import Journal
from kvstore.observe.making import heading_of
from kvstore.policy.choices import make_admission, make_eviction, make_swap
from kvstore.server.clock import now, wall_now
from kvstore.server.layout import Layout
from kvstore.server.parts import Parts
from kvstore.server.pools import FrameCounts, Pools, count_frames, frame_bytes, make_pools
from kvstore.server.running import RunningStore
from kvstore.tiers.disk import DiskTier
from kvstore.tiers.movers import WRITE_THREADS

__all__ = ["FirstAttach"]

Returned = TypeVar("Returned")


log = logging.getLogger(__name__)


class FirstAttach:
    """`serve_pools` is called with the pools' descriptors, `stop` when the store can't go on."""

    def __init__(
        self, parts: Parts, serve_pools: Callable[[Sequence[int | None]], None], stop: Callable[[], None]
    ) -> None:
        self._parts = parts
        self._serve_pools = serve_pools
        self._stop = stop
        self._making: asyncio.Task[RunningStore] | None = None

    async def store(self, layout: Layout) -> RunningStore:
        """All who attach meanwhile wait for the same; it goes on when the deadline of a caller has passed."""
        # Before the disk is laid out for it: a layout that is refused must not have cost what is there.
        self._parts.check_namespace(layout)
        frames = count_frames(self._parts.config, layout, self._parts.disk, self._parts.gpus)
        if self._making is None:
            self._making = asyncio.create_task(self._make(layout, frames))
            self._making.add_done_callback(self._made)
        return await asyncio.shield(self._making)

    async def close(self) -> None:
        if self._making is not None:
            self._making.cancel()
            await asyncio.wait([self._making])

    def _made(self, making: asyncio.Task[RunningStore]) -> None:
        self._making = None
        # All callers may have gone meanwhile; then nobody else has looked at the error.
        if not making.cancelled() and (error := making.exception()) is not None:
            log.warning("no pools were made: %s", error)
            if self._parts.failure is not None:
                self._store_failed()

    async def _make(self, layout: Layout, frames: FrameCounts) -> RunningStore:
        parts = self._parts
        config = self._store_config(layout, frames)
        eviction = make_eviction(parts.config.eviction_policy, config.frames)
        swap = make_swap(parts.config.swap_policy, parts.config.drop_tokens_max)
        pools = await make_pools(layout, frames, parts.gpus)
        try:
            found, sessions = await _in_thread(partial(_find_stored, parts.disk, layout))
            # Before any engine has a frame: none is in use yet.
            await _in_thread(partial(self._learn, pools, layout, max(0, frames.disk - len(found))))
            running = self._run(Store(config, eviction, swap, make_admission(eviction)), pools, layout)
        except BaseException:
            await asyncio.to_thread(pools.close)
            raise
        parts.running = running
        if parts.journal is not None:
            heading = heading_of(
                config,
                eviction,
                swap,
                build=__version__,
                store_epoch=parts.store_epoch,
                start_time=now(),
                start_wall=wall_now(),
            )
            running.journal = Journal(parts.journal, heading)
        self._begin(running, BlocksFound(time=now(), blocks=found, sessions=sessions))
        self._serve_pools(pools.gpu.fds)
        return running

    def _learn(self, pools: Pools, layout: Layout, disk_room: int) -> None:
        """What the links can do. `disk_room`: blocks that may be written to try the disk."""
        parts = self._parts
        tenant = parts.names.tenant_id(parts.config.tenants[0])
        writer = parts.names.writer_id("calibration", __version__)
        parts.learnt.learn(pools, parts.namespace(layout), (tenant, writer), disk_room)

    def _run(self, store: Store, pools: Pools, layout: Layout) -> RunningStore:
        parts = self._parts
        return RunningStore(
            layout=layout,
            store=store,
            pools=pools,
            disk=parts.disk,
            waits=parts.waits,
            counts=parts.counts,
            watched=parts.watching.events,
            rates=parts.learnt.rates,
            limits=parts.limits.links,
            failed=self._store_failed,
        )

    def _begin(self, running: RunningStore, found: BlocksFound) -> None:
        """The store's first events, also of what was asked for while there was none."""
        parts = self._parts
        parts.watching.begin_store(running)
        running.ask(found, Done)
        running.tell_costs()
        parts.limits.begin(running)
        if parts.health.is_draining:
            running.ask(Drain(time=now()), DrainAnswer)
        if parts.disk is not None and parts.config.scrub_bytes:
            parts.disk.start_scrub(running.lost_in_thread, parts.config.scrub_bytes)

    def _store_failed(self) -> None:
        self._parts.health.changed()
        self._stop()

    def _store_config(self, layout: Layout, frames: FrameCounts) -> StoreConfig:
        config, names = self._parts.config, self._parts.names
        return StoreConfig(
            block_tokens=layout.block_tokens,
            gpu_frames=frames.gpu,
            cpu_frames=frames.cpu,
            disk_frames=frames.disk,
            tenants={name: names.tenant_id(name) for name in config.tenants},
            default_tenant=config.tenants[0],
            tenant_shares=config.tenant_shares,
            engines_max=config.engines_max,
            lease_seconds_max=config.lease_seconds,
            high_watermark=config.high_watermark,
            low_watermark=config.low_watermark,
            cpu_high_watermark=config.cpu_high_watermark,
            cpu_low_watermark=config.cpu_low_watermark,
            transfer_blocks_max=transfer_blocks(frame_bytes(layout)),
            writes_max=WRITE_THREADS,
            write_blocks_max=write_blocks(frame_bytes(layout), frames.cpu),
            judges_turns=config.disk_admission == "worth",
            copy_from_share=COPY_FROM_SHARE,
            retained_blocks_max=config.retain_bytes // (layout.block_bytes * layout.ranks),
        )


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
) -> tuple[Sequence[StoredKey], tuple[StoredSession, ...]]:
    if disk is None:
        return (), ()
    disk.lay_out(layout.block_bytes, layout.ranks)
    return disk.found(layout.block_bytes * layout.ranks), tuple(disk.sessions())
