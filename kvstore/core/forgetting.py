"""Forget: what one session, tenant, namespace or writer has left is taken out of every tier, for good.

It takes effect at once: from the call on none of these blocks can be found, and what hangs on them, or is
computed behind them, can't be either. To take them out is work for a while, for there may be a million:
it is done in lots, tails before heads, so that what is left is whole at every moment and a crash in the
middle leaves a valid store, in which the same Forget goes on. Blocks that sequences use keep their frames
until they are given up. It is done when transfers that touch the disk have ended, what they brought is
deleted too, and the disk has said that all deletes are durable.
"""

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Many
from itertools import pairwise
from typing import Any

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from kvstore.core.blocks import NO_FRAME, NO_ROW, NO_ROWS, Rows
from kvstore.core.checking import check_tenant
from kvstore.core.config import StoreConfig
from kvstore.core.effects import DiskSync, ForgetAnswer
from kvstore.core.engines import Engine, Publish, TurnEnd
from kvstore.core.errors import FieldInvalid, TooManyForgets, check
from kvstore.core.events import DiskSynced, Forget
from kvstore.core.memory import Memory
from kvstore.core.prefix import chain_places, domain_parts
from kvstore.core.sequences import session_owner
from kvstore.core.sessions import Sessions
from kvstore.core.swaps import Swaps
from kvstore.core.types import (
    CPU,
    DISK,
    BlockKey,
    DomainId,
    ForgetId,
    NamespaceId,
    SyncId,
    TenantId,
    WriterId,
)

__all__ = ["Forgetting"]

FORGETS_MAX = 16
# A disk that can't delete is asked again so much later.
RETRY_SECONDS = 1.0
NO_GENERATIONS = np.empty(0, np.uint32)
# Sorted by their two lower bytes as long as these say all: eight times as fast.
SHORT = 1 << 16
# To compare a column with each of so many values is quicker than to sort it.
COMPARED_MAX = 32


class _Scope(Struct, frozen=True):
    """Of these tenants, and of what else is named. `whole`: of a session also what others use."""

    tenants: tuple[TenantId, ...]
    namespace: NamespaceId
    session: str
    writers: tuple[WriterId, ...]
    whole: bool

    def covers(self, domain: DomainId) -> bool:
        namespace, tenant = domain_parts(domain)
        return tenant in self.tenants and self.namespace in (0, namespace)

    def covers_session(self, domain: DomainId, name: str) -> bool:
        """What one writer has left says nothing of the sessions that it wrote for."""
        return not self.writers and self.session in ("", name) and self.covers(domain)

    def covers_work(self, engine: Engine, domain: DomainId, session: str) -> bool:
        """Of an engine that is there: what it does for this session, or for none."""
        writes = not self.writers or engine.writer in self.writers
        return writes and self.session in ("", session) and self.covers(domain)


class _Job(Struct, eq=False):
    """One Forget. `rows` from `place` on, and `sessions`, are still to be taken out."""

    id: ForgetId
    scope: _Scope
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
        scope = self._scope(event)
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
        return self._answer(self._go_on(job, event.time))

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

    def _scope(self, event: Forget) -> _Scope:
        check_tenant(self._config, event.tenant)
        if not (event.session or event.tenant or event.namespace or event.writers):
            raise FieldInvalid(
                "nothing is named",
                field="session",
                value="",
                remedy="name a session, a tenant, a namespace or an engine",
            )
        if event.session and event.writers:
            raise FieldInvalid(
                "an engine is named as well",
                field="session",
                value=event.session,
                remedy="forget a session, or what an engine wrote",
            )
        config = self._config
        tenants = tuple(config.tenants.values())
        if event.tenant or event.session:
            tenants = (config.tenants[event.tenant or config.default_tenant],)
        return _Scope(
            tenants=tenants,
            namespace=event.namespace,
            session=event.session,
            writers=event.writers,
            whole=event.whole_chain,
        )

    def _add(self, job: _Job) -> None:
        """Takes in what there is now. None of it can be found or published from here on."""
        blocks, scope = self._memory.blocks, job.scope
        for engine in self._engines():
            self._silence(engine, scope)
        rows = self._find(scope)
        blocks.bar(rows)
        # Tails first. Whatever hangs on a block is deeper, and among them or gone.
        order = _order_by_depth(blocks.depth[rows])
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

    def _silence(self, engine: Engine, scope: _Scope) -> None:
        """What sequences in scope have not published yet, and will compute from now on, stays their own."""
        for sequence in engine.sequences.values():
            if scope.covers_work(engine, sequence.domain, sequence.session):
                sequence.forgotten = True
        dropped = [fence for fence in engine.fences if self._is_in(engine, fence, scope)]
        if not dropped and not engine.quarantine:
            return
        gone = set(map(id, dropped))
        engine.fences = type(engine.fences)(each for each in engine.fences if id(each) not in gone)
        engine.quarantine = [each for each in engine.quarantine if not self._is_in(engine, each, scope)]
        for fence in dropped:
            if isinstance(fence, Publish):
                self._unannounce(engine, fence, scope)

    def _is_in(self, engine: Engine, fence: object, scope: _Scope) -> bool:
        if isinstance(fence, TurnEnd):
            return scope.covers_work(engine, fence.domain, fence.session)
        if not isinstance(fence, Publish) or not scope.covers(fence.domain):
            return False
        if scope.session:
            return fence.owner == session_owner(fence.domain, scope.session)
        return not scope.writers or engine.writer in scope.writers

    def _unannounce(self, engine: Engine, publication: Publish, scope: _Scope) -> None:
        """The engine's own sequences could find it before all others."""
        rows = publication.rows[publication.first : publication.end]
        pending = engine.pending.get(publication.domain, {})
        for place, row in zip(
            chain_places(publication.keys, publication.first, publication.end), rows, strict=True
        ):
            if pending.get(place) == row:
                del pending[place]
        if scope.whole or not scope.session:
            # Nor may another sequence publish it, to which it was shown.
            self._memory.blocks.bar(np.array(rows, np.intp))

    def _find(self, scope: _Scope) -> Rows:
        """Blocks in the index that are in scope, with all that must go with them."""
        blocks, prefix = self._memory.blocks, self._memory.prefix
        domains = [domain for domain in prefix.domains() if scope.covers(domain)]
        mine = blocks.indexed & _is_one_of(blocks.domain, domains)
        if scope.writers:
            mine &= _is_one_of(blocks.writer, scope.writers)
        elif scope.session:
            owners = [session_owner(domain, scope.session) for domain in domains]
            mine &= _is_one_of(blocks.owner, owners)
            for domain, keys in self._chains_of(scope, domains):
                mine[np.array(prefix.find_prefix(domain, keys, {}), np.intp)] = True
        if scope.session and not scope.whole:
            return self._own(np.flatnonzero(mine))
        if scope.session or scope.writers:
            self._spread(mine)
        return np.flatnonzero(mine)

    def _spread(self, mine: NDArray[np.bool_]) -> None:
        """To all that hangs on these: level by level, which looks at each block once."""
        blocks = self._memory.blocks
        rows = np.flatnonzero(blocks.indexed)
        depth = blocks.depth[rows]
        order = _order_by_depth(depth)
        rows, ends = rows[order], np.cumsum(np.bincount(depth)).tolist()
        for begin, end in pairwise(ends):
            level = rows[begin:end]
            mine[level] |= mine[blocks.parent[level]]

    def _chains_of(
        self, scope: _Scope, domains: Iterable[DomainId]
    ) -> Iterator[tuple[DomainId, Many[BlockKey]]]:
        """Of a session: what its last turn has left, and what its turns that are there hold."""
        for domain in domains:
            session = self._sessions.find(domain, scope.session)
            if session is not None:
                yield domain, session.keys
        for engine in self._engines():
            for sequence in engine.sequences.values():
                if scope.covers_work(engine, sequence.domain, sequence.session):
                    yield sequence.domain, sequence.keys

    def _own(self, rows: Rows) -> Rows:
        """Of a session's blocks those that nobody else has used, and on which nothing of others hangs."""
        blocks = self._memory.blocks
        own = rows[~blocks.shared[rows]]
        if not own.size:
            return own
        parents = blocks.parent[own]
        hanging = np.bincount(parents[parents != NO_ROW], minlength=blocks.capacity)
        others = own[blocks.children[own] != hanging[own]]
        return np.setdiff1d(own, self._memory.prefix.with_ancestors(others))

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
        self._memory.drop_replicas(DISK, going[blocks.frame[DISK][going] != NO_FRAME])
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


def _order_by_depth(depth: NDArray[np.int32]) -> Rows:
    short = depth.max(initial=0) < SHORT
    order: Rows = np.argsort(depth.astype(np.uint16) if short else depth, kind="stable")
    return order


def _is_one_of(column: NDArray[Any], values: Many[int]) -> NDArray[np.bool_]:
    """`np.isin`, which sorts a million to find one."""
    if len(values) > COMPARED_MAX:
        return np.isin(column, values)
    found = np.zeros(column.size, np.bool_)
    for value in values:
        found |= column == value
    return found
