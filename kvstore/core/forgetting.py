"""Forget: what one session, tenant, namespace or writer has left is taken out of every tier, for good.

It takes effect at once: from the call on none of these blocks can be found, and what hangs on them, or is
computed behind them, can't be either. To take them out is work for a while, for there may be a million:
it is done in lots, tails before heads, so that what is left is whole at every moment and a crash in the
middle leaves a valid store, in which the same Forget goes on. Blocks that sequences use keep their frames
until they are given up. It is done when transfers that touch the disk have ended, what they brought is
deleted too, and the disk has said that all deletes are durable.
"""

from collections.abc import Callable, Iterable

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from kvstore.core.answers import ForgetAnswer
from kvstore.core.blocks import NO_FRAME, NO_ROWS, Rows
from kvstore.core.calls import Forget
from kvstore.core.config import StoreConfig
from kvstore.core.effects import DiskSync
from kvstore.core.engines import Engine
from kvstore.core.errors import TooManyForgets, check
from kvstore.core.events import DiskSynced
from kvstore.core.forget_blocks import ScopeBlocks, order_by_depth
from kvstore.core.forget_pending import silence
from kvstore.core.forget_scope import Scope, hide_decisions, scope_of
from kvstore.core.memory import Memory
from kvstore.core.sessions import Sessions
from kvstore.core.swaps import Swaps
from kvstore.core.types import CPU, DISK, DomainId, ForgetId, SyncId

__all__ = ["RETRY_SECONDS", "Forgetting"]

FORGETS_MAX = 16
# A disk that can't delete is asked again so much later.
RETRY_SECONDS = 1.0
NO_GENERATIONS = np.empty(0, np.uint32)


class _Job(Struct, eq=False):
    """One Forget. `rows` from `place` on, and `sessions`, are still to be taken out."""

    id: ForgetId
    scope: Scope
    rows: Rows = NO_ROWS
    # What a row's number meant when it was taken in: by the time of its lot it may mean another block.
    generations: NDArray[np.uint32] = NO_GENERATIONS
    place: int = 0
    sessions: list[tuple[DomainId, str]] = field(default_factory=list)
    # Blocks that are taken out, but a transfer from or to the disk still touches them.
    moving: Rows = NO_ROWS
    # The disk is asked whether all is durable.
    sync: SyncId | None = None
    retry_time: float = 0.0
    forgotten: int = 0
    done: bool = False

    @property
    def has_lots(self) -> bool:
        return self.place < self.rows.size or bool(self.sessions)


class Forgetting:
    """All Forgets that are not done yet, the oldest first."""

    def __init__(
        self,
        config: StoreConfig,
        memory: Memory,
        swaps: Swaps,
        sessions: Sessions,
        engines: Callable[[], Iterable[Engine]],
    ) -> None:
        self._config = config
        self._memory = memory
        self._swaps = swaps
        self._sessions = sessions
        self._engines = engines
        self._in_scope = ScopeBlocks(memory, sessions, engines)
        self._jobs: dict[ForgetId, _Job] = {}
        # Blocks that the last ones which are done have taken out.
        self._counts: dict[ForgetId, int] = {}
        self._last_id = 0
        self._last_sync = 0
        # To be asked with the next effects.
        self.syncs: list[DiskSync] = []

    @property
    def is_idle(self) -> bool:
        return not self._jobs

    def begin(self, event: Forget) -> ForgetAnswer:
        """The first lot. The same Forget, asked again, goes on with what is left and with what is new."""
        scope = scope_of(self._config, event)
        job = next((job for job in self._jobs.values() if job.scope == scope), None)
        if job is None:
            if len(self._jobs) >= FORGETS_MAX:
                raise TooManyForgets(
                    f"{FORGETS_MAX} are not done yet",
                    field="session",
                    value=event.session,
                    remedy="wait for one of them; if none ends, see whether the disk can be written",
                )
            self._last_id += 1
            job = _Job(id=ForgetId(self._last_id), scope=scope)
            self._jobs[job.id] = job
        self._add(job)
        answer = self._answer(self._go_on(job, event.time))
        hide_decisions(self._config, self._memory.decisions, scope)
        return answer

    def go_on(self, id: ForgetId, time: float) -> ForgetAnswer:
        """The next lot. What was done when nobody asked is told as long as it is among the last few."""
        job = self._jobs.get(id)
        if job is None:
            check(id <= self._last_id, f"Forget {id} was never begun")
            count = self._counts.get(id, 0)
            return ForgetAnswer(forget=id, blocks_forgotten=count, done=True, lots_left=False)
        return self._answer(self._go_on(job, time))

    def tick(self, time: float) -> None:
        """Those go on that nobody asks about, one lot in all; and those that wait for the disk."""
        for job in list(self._jobs.values()):
            had_lots = job.has_lots
            self._go_on(job, time)
            if had_lots:
                break

    def transfer_ended(self, time: float) -> None:
        for job in list(self._jobs.values()):
            if not job.has_lots:
                self._go_on(job, time)

    def synced(self, event: DiskSynced) -> None:
        job = next((job for job in self._jobs.values() if job.sync == event.sync), None)
        if job is None:
            # More was to be forgotten meanwhile: it will be asked again.
            return
        job.sync = None
        if event.failed:
            job.retry_time = event.time + RETRY_SECONDS
        else:
            self._end(job)

    # ---------------------------------------------------------------------------- what

    def _add(self, job: _Job) -> None:
        """Takes in what there is now. None of it can be found or published from here on."""
        blocks, scope = self._memory.blocks, job.scope
        for engine in self._engines():
            silence(engine, scope, blocks)
        rows = self._in_scope.find(scope)
        blocks.bar(rows)
        # Tails first. Whatever hangs on a block is deeper, and among them or gone.
        order = order_by_depth(blocks.depth[rows])
        left = self._still_there(job, slice(job.place, None))
        job.rows, job.place = (rows[order[::-1]] if not left.size else self._merge(left, rows)), 0
        job.generations = blocks.generation[job.rows]
        found = [name for name in self._sessions.names() if scope.covers_session(*name)]
        job.sessions = found
        job.sync = None

    def _merge(self, left: Rows, rows: Rows) -> Rows:
        both = np.union1d(left, rows)
        order: Rows = both[np.argsort(-self._memory.blocks.depth[both], kind="stable")]
        return order

    def _still_there(self, job: _Job, part: slice) -> Rows:
        """Of these those that have not been evicted meanwhile."""
        rows, blocks = job.rows[part], self._memory.blocks
        there: Rows = rows[blocks.indexed[rows] & (blocks.generation[rows] == job.generations[part])]
        return there

    # ---------------------------------------------------------------------------- work

    def _go_on(self, job: _Job, time: float) -> _Job:
        if job.has_lots:
            self._take_lot(job)
        if not job.has_lots:
            job.moving = self._leave_disk(job.moving)
            if not job.moving.size:
                self._sync(job, time)
        return job

    def _take_lot(self, job: _Job) -> None:
        lot = self._config.forget_lot_blocks
        for name in job.sessions[:lot]:
            self._sessions.end(*name)
        del job.sessions[:lot]
        blocks = self._memory.blocks
        rows = self._still_there(job, slice(job.place, job.place + lot))
        job.place += lot
        self._memory.take_out(rows)
        job.forgotten += rows.size
        # A sequence that waits for a block must not come to see it; what was its own before, it may.
        unfilled = rows[blocks.unfilled(rows)]
        self._swaps.deny(unfilled[blocks.claims[unfilled] == 0])
        job.moving = np.concatenate([job.moving, self._leave_disk(rows)])
        self._memory.collect(rows)

    def _leave_disk(self, rows: Rows) -> Rows:
        """Of blocks that can't be found any more, drops the copies on disk; returns those that a transfer
        still touches."""
        blocks = self._memory.blocks
        if not self._config.disk_frames or not rows.size:
            return NO_ROWS
        gone = blocks.barred[rows] & ~blocks.indexed[rows]
        rows = rows[gone & (blocks.frame[DISK][rows] != NO_FRAME)]
        held = blocks.pins[DISK][rows] > 0
        claimed = rows[~held & (blocks.claims[rows] > 0)]
        if claimed.size:
            self._cut_swapped(claimed[blocks.frame[CPU][claimed] == NO_FRAME])
        going = rows[~held]
        self._memory.replicas.drop(DISK, going[blocks.frame[DISK][going] != NO_FRAME])
        self._memory.collect(going)
        return rows[held]

    def _cut_swapped(self, rows: Rows) -> None:
        """Swapped sequences have nothing but the disk's copy of these: they lose them, and what is behind."""
        if rows.size:
            lost = set(rows.tolist())
            for engine in self._engines():
                for sequence in engine.sequences.values():
                    if sequence.claimed and not lost.isdisjoint(sequence.claimed):
                        self._swaps.cut(sequence, lost)

    def _sync(self, job: _Job, time: float) -> None:
        """All is told to the disk. Done is what it says is durable."""
        if not self._config.disk_frames:
            self._end(job)
        elif job.sync is None and time >= job.retry_time:
            self._last_sync += 1
            job.sync = SyncId(self._last_sync)
            self.syncs.append(DiskSync(sync=job.sync))

    def _end(self, job: _Job) -> None:
        job.done = True
        # What was decided of its blocks while they were taken out is told no more, either.
        hide_decisions(self._config, self._memory.decisions, job.scope)
        del self._jobs[job.id]
        self._counts[job.id] = job.forgotten
        if len(self._counts) > FORGETS_MAX:
            del self._counts[next(iter(self._counts))]
        blocks = self._memory.blocks
        blocks.has_barred = bool(blocks.barred.any())

    def _answer(self, job: _Job) -> ForgetAnswer:
        return ForgetAnswer(
            forget=job.id, blocks_forgotten=job.forgotten, done=job.done, lots_left=job.has_lots
        )
