"""A small world around a real store: memory, transfers under way, and time.

Every event goes through `World.handle`, which checks all invariants of the store after it, and
that no transfer touches a frame that work of an engine still uses. When transfers end is for the
carrier to say: tests end them by hand, the simulator by its clock (`links.py`).
"""

import math
import random
from collections.abc import Iterable

from kvstore.core.calls import Watch
from kvstore.core.effects import Effects, Transfer
from kvstore.core.events import (
    BlocksFound,
    BlocksLost,
    DiskSynced,
    Event,
    FramesReturned,
    Tick,
    TransferEnded,
)
from kvstore.core.invariants import check_invariants
from kvstore.core.store import Store
from kvstore.core.types import StoredKey, SyncId, Tier
from kvstore.sim.carrying import ByHand, Carrier, Moving
from kvstore.sim.clashes import check_apart, check_in_time, check_streams_apart
from kvstore.sim.mirror import Mirror
from kvstore.sim.records import Executed, Handled, Log, Moved
from kvstore.sim.shadow import Shadow, Version
from kvstore.sim.texts import BLOCK_TOKENS, Content, stored_keys
from kvstore.sim.work import Publish, Space, Work, WriteTokens
from kvstore.sim.wrong import Wrong, expect

__all__ = ["World"]


class World:
    """One store, the bytes behind it and its clock, driven by a seed."""

    def __init__(
        self,
        store: Store,
        seed: int = 0,
        fail_share: float = 0.0,
        rank_count: int = 1,
        carrier: Carrier | None = None,
        watched: bool = False,
    ) -> None:
        self.store = store
        self.random = random.Random(seed)
        self.carrier = carrier or ByHand(self.random, fail_share)
        self.shadow = Shadow(rank_count)
        self.time = 100.0
        self.under_way: list[Moving] = []
        # Questions to the disk whose answer has still to come.
        self.syncs: list[SyncId] = []
        # When the last of them has failed: it is asked again after a while.
        self.sync_failed_time = -math.inf
        # Transfers that have ended, but for the late places that they name.
        self.late: list[Moving] = []
        # Work that engines have sent to their GPU stream and that has not run yet, by engine.
        self.pending: dict[int, list[tuple[int, Work]]] = {}
        self.log: Log = []
        # Events handled so far.
        self.events = 0
        # Who watches the store from its beginning, if anybody does.
        self.mirror: Mirror | None = None
        self._watched = watched
        self._begin()

    def handle(self, event: Event) -> Effects:
        record = Handled(self.time, event)
        self.log.append(record)
        self.events += 1
        effects = record.effects = self.store.handle(event)
        for told in (*effects.deletes, *effects.notes):
            self.carrier.tell_disk(self, told)
        for sync in effects.syncs:
            self.syncs.append(sync.sync)
            self.carrier.sync(self, sync)
        known = {moving.transfer.id for moving in self.under_way} if effects.raised else set()
        expect(known.issuperset(effects.raised), "a transfer is to hurry that is not under way")
        for transfer in effects.transfers:
            self._check_unused(transfer)
            moving = Moving(transfer)
            if transfer.target is Tier.DISK:
                writes = self.moving(Tier.CPU, Tier.DISK)
                moving.before = writes[-1] if writes and not writes[-1].done else None
            self.under_way.append(moving)
            self.carrier.carry(self, moving)
        check_invariants(self.store)
        if self.mirror is not None:
            self.mirror.follow(self.store, effects)
        return effects

    def _begin(self) -> None:
        if self._watched:
            self.mirror = Mirror()
            self.handle(Watch(time=self.time, on=True))

    def find(self, *texts: Content, tenant: int = 1, namespace: int = 1) -> None:
        """The store starts and finds these texts on disk, the one used longest ago first."""
        found: dict[StoredKey, None] = {}
        for tokens in texts:
            for place, key in enumerate(stored_keys(tokens, tenant=tenant, namespace=namespace)):
                found[key] = None
                block = tokens[place * BLOCK_TOKENS : (place + 1) * BLOCK_TOKENS]
                self.shadow.disk.put(key, tuple(Version(Space(), place, 1, block) for _ in self.shadow.ranks))
        self.handle(BlocksFound(time=self.time, blocks=tuple(found)))

    def restart(self, store: Store) -> None:
        """The service was killed and starts again: of all there was only what lies on disk is left."""
        self.under_way.clear()
        self.syncs.clear()
        self.shadow.origins.crash()
        self.late.clear()
        self.pending.clear()
        self.shadow.lose_memory()
        self.store = store
        self._begin()
        disk = self.shadow.disk
        self.handle(BlocksFound(time=self.time, blocks=disk.find(), sessions=disk.sessions()))
        self.tick(0.0)

    # ------------------------------------------------------------------------ transfers

    def move(self, moving: Moving, ranks: Iterable[int] | None = None) -> None:
        """The bytes of these ranks move, if they have not yet; without any named, those of all."""
        if moving.done:
            return
        transfer, shadow = moving.transfer, self.shadow
        if transfer.target is Tier.DISK:
            # All ranks' parts of all blocks in one transaction.
            moving.done = True
            self._keep_order(moving)
            self.carrier.before_write(self, moving)
            moved = 0 if moving.failed else len(transfer.keys)
            shadow.write(transfer, moved)
            self.log.append(Moved(self.time, transfer, 0, set(moving.failed)))
            return
        for rank in sorted(set(shadow.ranks if ranks is None else ranks) - moving.moved):
            if transfer.source is Tier.DISK:
                self._find_damage(moving)
            shadow.transfer(transfer, moving.failed, rank)
            moving.moved.add(rank)
            self.log.append(Moved(self.time, transfer, rank, set(moving.failed)))
        moving.done = len(moving.moved) == len(shadow.ranks)

    def _keep_order(self, moving: Moving) -> None:
        """Whoever stores blocks does so in the order in which writes were begun; one that was begun while an
        earlier was under way fails where that has failed."""
        before, moving.before = moving.before, None
        if before is not None and before in self.under_way:
            self.move(before)
        if before is not None and before.failed:
            moving.failed = {(0, place) for place in range(len(moving.transfer.keys))}

    def _find_damage(self, moving: Moving) -> None:
        """An entry is right as a whole or not at all, and a bad one is dropped when it is read."""
        disk, ranks = self.shadow.disk, self.shadow.ranks
        bad = {place for _, place in moving.failed}
        bad |= {place for place, key in enumerate(moving.transfer.keys) if disk.is_bad(key)}
        bad -= moving.late
        for place in bad:
            moving.failed |= {(rank, place) for rank in ranks}
            disk.drop(moving.transfer.keys[place])

    def end(
        self, moving: Moving, failed: Iterable[int] | None = None, late: Iterable[int] | None = None
    ) -> Effects:
        """Ends one transfer, well or as `failed` and `late` say."""
        self.under_way.remove(moving)
        if failed is not None or late is not None:
            moving.late = set(late or ())
            moving.failed = {(0, place) for place in {*(failed or ()), *moving.late}}
            moving.moved, moving.done = set(), False
        self.move(moving)
        places = {place for _, place in moving.failed} | moving.late
        if moving.late:
            self.late.append(moving)
        return self.handle(
            TransferEnded(
                time=self.time,
                transfer=moving.transfer.id,
                failed=tuple(sorted(places)),
                late=tuple(sorted(moving.late)),
            )
        )

    def return_frames(self, moving: Moving, places: Iterable[int] | None = None) -> Effects:
        """The device has let go of these late places, or of all: until just now it wrote to their frames."""
        returned = sorted(moving.late if places is None else places)
        moving.late -= set(returned)
        if not moving.late:
            self.late.remove(moving)
        self.shadow.spoil(Tier.CPU, [moving.transfer.target_frames[place] for place in returned])
        event = FramesReturned(time=self.time, transfer=moving.transfer.id, positions=tuple(returned))
        return self.handle(event)

    def lose(self, keys: Iterable[StoredKey]) -> Effects:
        """The disk, which has dropped these blocks by itself, says so."""
        return self.handle(BlocksLost(time=self.time, keys=tuple(keys)))

    def end_one(self) -> None:
        self.end(self.random.choice(self.next_ends()))

    def next_ends(self) -> list[Moving]:
        """Transfers that may end next: of the writes to disk only the one that was begun first."""
        later = self.moving(Tier.CPU, Tier.DISK)[1:]
        return [each for each in self.under_way if each not in later]

    def end_sync(self, sync: SyncId | None = None, *, failed: bool = False) -> Effects:
        """The disk has what was told before: the oldest question, unless another is named."""
        sync = self.syncs[0] if sync is None else sync
        self.syncs.remove(sync)
        if failed:
            self.sync_failed_time = self.time
        return self.handle(DiskSynced(time=self.time, sync=sync, failed=failed))

    def drain(self) -> None:
        """All that is under way ends, and what follows from it; late reads too."""
        for _ in range(100_000):
            self.drain_but_late()
            if not self.late:
                return
            self.return_frames(self.late[0])
        raise Wrong("reads are late again and again")

    def drain_but_late(self) -> None:
        """All that is under way ends, and what follows from it; the disk is asked meanwhile, too."""
        for _ in range(100_000):
            if self.under_way:
                self.end_one()
            elif self.syncs:
                self.end_sync()
            else:
                return
        raise Wrong("transfers go on and on")

    def moving(self, source: Tier, target: Tier) -> list[Moving]:
        return [
            each
            for each in self.under_way
            if (each.transfer.source, each.transfer.target) == (source, target)
        ]

    def _check_unused(self, transfer: Transfer) -> None:
        """Pending work may read what is copied down, and may do nothing with what is filled. Nobody uses
        what a device may still write to."""
        check_in_time(transfer, self.late)
        for steps in self.pending.values():
            for _, work in steps:
                check_apart(transfer, work, "a transfer is started while a kernel has still to")

    # ------------------------------------------------------------------ the GPU of engines

    def enqueue(self, engine: int, step: int, work: Work) -> None:
        """Work of a step, to run when the engine's stream comes to it."""
        for moving in self.under_way:
            check_apart(moving.transfer, work, "a frame is granted and a transfer has still to end; kernels")
        for other, steps in self.pending.items():
            if other != engine:
                check_streams_apart(work, engine, [each for _, each in steps], other)
        self.pending.setdefault(engine, []).append((step, work))

    def is_to_be_written(self, engine: int, commit: Publish) -> bool:
        """Whether work that writes what is committed has still to run."""
        blocks = commit.blocks()
        works = [work for _, work in self.pending.get(engine, ())]
        writes = [work for work in works if isinstance(work, WriteTokens) and work.seen is commit.seen]
        return any(block in blocks for work in writes for block in work.blocks())

    def execute(self, engine: int, up_to: int) -> None:
        """The stream of an engine runs the work of its steps up to this one, in order."""
        steps = self.pending.get(engine, [])
        while steps and steps[0][0] <= up_to:
            self.run(engine, *steps.pop(0))

    def run(self, engine: int, step: int, work: Work) -> None:
        self.log.append(Executed(self.time, engine, step, work))
        self.shadow.execute(work)

    # ------------------------------------------------------------------------------ rest

    def tick(self, seconds: float = 0.1) -> Effects:
        self.time += seconds
        return self.handle(Tick(time=self.time))

    def free_frames(self) -> tuple[int, int, int]:
        gpu, cpu, disk = (tier.frames_free for tier in self.store.usage().tiers)
        return gpu, cpu, disk

    def check_nothing_held(self) -> None:
        """No engine is left: every frame is free or holds cached content that can be given up."""
        usage = self.store.usage()
        expect(not usage.engines, f"engines are left: {usage.engines}")
        for used in usage.tiers:
            held = used.frames_total - used.frames_free - used.frames_cached
            expect(not held and not used.frames_pinned, f"{used.tier.name}: {held} frames are held by nobody")
