"""A store at work: the only caller of `Store.handle`, on the one thread of the event loop.

Events come in from calls, tethers, ends of transfers and ten ticks a second; effects go out to the
movers, to waiting KeepAlives and to those who watch. A bug in the core, or a mover thread that has died,
ends it: from then on every event is refused and no state is touched any more.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import perf_counter
from typing import TypeVar

from kvstore.core.answers import Answer, Done
from kvstore.core.effects import Effects
from kvstore.core.errors import CheckFailed, KVStoreError
from kvstore.core.events import BlocksLost, DiskSynced, Event, FramesReturned, Tick, TransferEnded
from kvstore.core.explaining import Explaining
from kvstore.core.lanes import blocks_in_flight_max
from kvstore.core.store import Store
from kvstore.core.types import Link, Revision, StoredKey, SyncId, Tier, TransferId, Watermarks
from kvstore.core.usage import Usage
from kvstore.core.watermarks import MARKED_TIERS
from kvstore.observe.counting import Counts
from kvstore.observe.journal import Journal
from kvstore.server.beat import Beat
from kvstore.server.clock import now
from kvstore.server.costs import LinkCosts
from kvstore.server.events import Events
from kvstore.server.layout import Layout
from kvstore.server.limits import LinkLimits
from kvstore.server.pools import Pools
from kvstore.server.waits import Waits
from kvstore.tiers.copying import piece_bytes
from kvstore.tiers.cuda_thread import DeviceLost
from kvstore.tiers.disk import DiskTier
from kvstore.tiers.mover import Mover
from kvstore.tiers.movers import Movers
from kvstore.tiers.rates import LinkRates

__all__ = ["RunningStore"]

AnswerKind = TypeVar("AnswerKind", bound=Answer)

log = logging.getLogger(__name__)


class RunningStore:
    """Made and used on the event loop's thread. `failed` is called once, when it can't go on."""

    def __init__(
        self,
        *,
        layout: Layout,
        store: Store,
        pools: Pools,
        disk: DiskTier | None,
        waits: Waits,
        counts: Counts,
        watched: Events,
        rates: LinkRates,
        limits: LinkLimits,
        failed: Callable[[], None],
    ) -> None:
        self.layout = layout
        self.pools = pools
        self.failure: Exception | None = None
        # Set before the first event, if at all.
        self.journal: Journal | None = None
        self._store = store
        self._disk = disk
        self._waits = waits
        self._counts = counts
        self._watched = watched
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._moving: set[TransferId] = set()
        self._closing = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._limits = limits
        self._movers = Movers(
            pools.gpu,
            pools.cpu,
            disk,
            self._ended_in_thread,
            returned=self._returned_in_thread,
            synced=self._synced_in_thread,
            rates=rates,
            in_flight_bytes_max=blocks_in_flight_max(store.config) * pools.gpu.frame_bytes,
        )
        limits.rule(rates, self._movers.set_rate)
        self._costs = LinkCosts(rates, limits, pools.gpu.frame_bytes, piece_bytes(pools.gpu))
        self._beat = Beat(self._loop, tick=self._tick, look=self._look)

    def ask(self, event: Event, kind: type[AnswerKind]) -> AnswerKind:
        """Has the store handle an event and starts what follows. `kind` is the answer it must have."""
        if self.failure is not None:
            raise CheckFailed(f"the store is stopping: {self.failure}")
        try:
            effects = self._handle(event)
            if not isinstance(effects.answer, kind):
                raise CheckFailed(f"{type(event).__name__} was answered with {type(effects.answer).__name__}")
            self._start(effects)
        except KVStoreError:
            raise
        except Exception as error:
            self._fail(error)
            raise CheckFailed(f"the store has met a bug and stops: {error}") from error
        return effects.answer

    def usage(self) -> Usage:
        return self._store.usage()

    @property
    def explaining(self) -> Explaining:
        """What was decided lately, for who asks why."""
        return self._store.explaining

    def tell_costs(self) -> None:
        """What moving blocks takes, if that has changed."""
        event = self._costs.changed()
        if event is not None:
            self.ask(event, Done)

    @property
    def watermarks(self) -> dict[Tier, Watermarks]:
        return {tier: self._store.memory.watermarks[tier] for tier in MARKED_TIERS}

    @property
    def movers(self) -> Mapping[Link, Mover]:
        """To look at."""
        return self._movers.by_link

    @property
    def revision(self) -> Revision:
        return self._store.revision

    @property
    def is_idle(self) -> bool:
        """No transfer runs, and none follows from one that has ended."""
        return self._idle.is_set()

    async def end_transfers(self, seconds: float) -> None:
        """Lets those that run end, and those that follow from their ends."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), seconds)

    async def close(self, seconds: float) -> bool:
        """Lets the movers end what they have, after a bug too: nobody takes the frames that they read.

        False: a thread still hangs in a call, so nothing that it may touch was closed.
        """
        self._closing = True
        self._beat.end()
        ended = await asyncio.to_thread(self._movers.close, seconds)
        if self.journal is not None:
            await asyncio.to_thread(self.journal.close)
        if ended:
            await asyncio.to_thread(self.pools.close)
        return ended

    def _handle(self, event: Event) -> Effects:
        """Whatever comes of it is counted, and written down where there is a journal."""
        begin = perf_counter()
        try:
            effects = self._store.handle(event)
        except Exception as error:
            self._note(event, error, begin)
            raise
        self._note(event, effects, begin)
        return effects

    def _note(self, event: Event, result: Effects | Exception, begin: float) -> None:
        self._counts.write(event, result, perf_counter() - begin)
        if self.journal is not None:
            self.journal.write(event, result)

    def _start(self, effects: Effects) -> None:
        told = (*effects.deletes, *effects.notes, *effects.syncs)
        if effects.transfers or told or effects.raised:
            self._moving.update(transfer.id for transfer in effects.transfers)
            if self._moving:
                self._idle.clear()
            self._movers.start(effects.transfers, told, effects.raised)
        for engine in effects.wake:
            self._waits.wake(engine)
        if effects.happened:
            self._watched.add(effects.happened)

    # --- What comes in from threads of movers and disk, and on the loop what follows of it.

    def _ended_in_thread(self, transfer: TransferId, failed: tuple[int, ...], late: tuple[int, ...]) -> None:
        self._loop.call_soon_threadsafe(self._ended, transfer, failed, late)

    def _ended(self, transfer: TransferId, failed: tuple[int, ...], late: tuple[int, ...]) -> None:
        self._moving.discard(transfer)
        # The next transfer may follow from this one's end: idle is only who has nothing after that.
        self._take(TransferEnded(time=now(), transfer=transfer, failed=failed, late=late))
        if not self._moving:
            self._idle.set()

    def _returned_in_thread(self, transfer: TransferId, positions: tuple[int, ...]) -> None:
        self._loop.call_soon_threadsafe(self._returned, transfer, positions)

    def _returned(self, transfer: TransferId, positions: tuple[int, ...]) -> None:
        """A device that was late has let go of frames; they may be used again."""
        self._take(FramesReturned(time=now(), transfer=transfer, positions=positions))

    def _synced_in_thread(self, sync: SyncId, failed: bool) -> None:
        self._loop.call_soon_threadsafe(self._synced, sync, failed)

    def _synced(self, sync: SyncId, failed: bool) -> None:
        self._take(DiskSynced(time=now(), sync=sync, failed=failed))

    def lost_in_thread(self, keys: Sequence[StoredKey]) -> None:
        """Blocks that the disk has found bad by itself; for any thread."""
        # It may look on while the loop ends.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._lost, tuple(keys))

    def _lost(self, keys: tuple[StoredKey, ...]) -> None:
        self._take(BlocksLost(time=now(), keys=keys))

    def _take(self, event: Event) -> None:
        """Nobody waits for an answer. What would follow finds no mover any more while all is closed."""
        if not self._closing:
            with suppress(CheckFailed):
                self.ask(event, Done)

    # --- The beat.

    def _tick(self) -> None:
        with suppress(CheckFailed):
            self.ask(Tick(time=now()), Done)

    def _look(self) -> None:
        if self.failure is None and (dead := self._find_dead()):
            self._fail(CheckFailed(dead))
        self._limits.refresh()
        with suppress(CheckFailed):
            self.tell_costs()

    def _find_dead(self) -> str:
        if isinstance(self._movers.error, DeviceLost):
            return str(self._movers.error)
        if not self._movers.alive():
            return f"a mover thread has died: {self._movers.error}"
        if self._disk is not None and not self._disk.alive():
            return "a thread of the disk tier has died"
        return ""

    def _fail(self, error: Exception) -> None:
        self.failure = error
        log.critical("the store can't go on: %s", error, exc_info=error)
        self._idle.set()
        self._waits.close()
        self._failed()
