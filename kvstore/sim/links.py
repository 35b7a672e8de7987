"""Links of given bandwidth and latency between tiers, with slow spells, failures and lost order."""

import random
from collections import deque
from dataclasses import dataclass
from functools import partial

from kvstore.core.effects import BlocksUsed, DiskDelete, DiskNote, DiskSync
from kvstore.core.types import Tier
from kvstore.sim.carrying import Moving
from kvstore.sim.clock import Clock
from kvstore.sim.config import LinkSpeed, SimConfig
from kvstore.sim.world import World

__all__ = ["TimedLinks"]

SLOW_FACTOR = 30.0


@dataclass(slots=True)
class _Link:
    speed: LinkSpeed
    # When the transfers that it has begun will have ended.
    busy_until: float = 0.0


class TimedLinks:
    """Carries transfers by the clock. A link takes them in turn, but now and then one overtakes; writes to
    disk keep their order.

    What befalls a transfer depends on the seed and on the moment of its start alone, so that a run
    from which other things are left out still meets the same faults.
    """

    def __init__(self, config: SimConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._links = {link: _Link(speed) for link, speed in config.links.items()}
        # Deletes and notes that have not reached the disk yet.
        self._told: deque[DiskDelete | DiskNote] = deque()
        # False: nothing fails any more.
        self.faults = True
        # Until when reads from disk don't end.
        self._stuck_until = 0.0
        # Until when every write to disk fails.
        self.disk_full_until = 0.0

    def carry(self, world: World, moving: Moving) -> None:
        transfer, config, now = moving.transfer, self._config, world.time
        route = transfer.source, transfer.target
        link = self._links[route]
        rng = random.Random(f"{config.seed} {route} {now!r} {transfer.source_frames}")
        size = len(transfer.source_frames) * config.block_bytes
        seconds = link.speed.seconds(size) * rng.uniform(0.7, 1.5)
        if rng.random() < config.slow_share:
            seconds *= SLOW_FACTOR
        start = now if rng.random() < config.reorder_share else max(now, link.busy_until)
        end = start + seconds
        if transfer.target is Tier.DISK:
            # Writes end in the order in which they were begun.
            end = max(end, link.busy_until)
        link.busy_until = max(link.busy_until, end)
        if self.faults and rng.random() < config.fail_share:
            self._fail(world, moving, rng)
        if self.faults and transfer.source is Tier.DISK:
            self._be_late(world, moving, end, rng)
        if transfer.target is Tier.DISK:
            moving.told_before = self._told[-1] if self._told else None
            # The disk may refuse it at once: then the next may be begun after that, and before it is told.
            at_once = bool(moving.failed) and rng.random() < 0.5
            moment = now if at_once else rng.uniform(start, end)
            self._clock.at(moment, lambda: self._move(world, moving, [0]))
        else:
            for rank in world.shadow.ranks:
                self._clock.at(rng.uniform(start, end), partial(self._move, world, moving, [rank]))
        self._clock.at(end, lambda: self._end(world, moving))

    def tell_disk(self, world: World, told: DiskDelete | DiskNote) -> None:
        self._told.append(told)
        size = len(told.keys) if isinstance(told, DiskDelete | BlocksUsed) else len(told.sessions)
        rng = random.Random(f"{self._config.seed} {world.time!r} {size}")
        later = world.time + rng.uniform(0, 10) * self._config.links[Tier.CPU, Tier.DISK].latency
        self._clock.at(later, lambda: self._take_until(world, told))

    def before_write(self, world: World, moving: Moving) -> None:
        """What was told before a write reaches the disk before it. A full disk takes no block."""
        if moving.told_before is not None:
            self._take_until(world, moving.told_before)
        if self.faults and world.time < self.disk_full_until:
            moving.failed = {(0, place) for place in range(len(moving.transfer.keys))}

    def sync(self, world: World, sync: DiskSync) -> None:
        """What was told by now is durable then, or some of it is not yet."""
        rng = random.Random(f"{self._config.seed} {world.time!r} {sync.sync}")
        failed = self.faults and (rng.random() < self._config.fail_share or world.time < self.disk_full_until)
        later = world.time + rng.uniform(0, 20) * self._config.links[Tier.CPU, Tier.DISK].latency
        told, store = self._told[-1] if self._told else None, world.store

        def end() -> None:
            if told is not None and not failed:
                self._take_until(world, told)
            if world.store is store and sync.sync in world.syncs:
                world.end_sync(sync.sync, failed=failed)

        self._clock.at(later, end)

    def crash(self, world: World, rng: random.Random) -> None:
        """The service is killed: of what was on its way to disk some has arrived, in order."""
        for moving in world.moving(Tier.CPU, Tier.DISK):
            if moving.before is not None:
                moving.failed |= moving.before.failed
            if not moving.done and not moving.failed:
                self.before_write(world, moving)
                count = len(moving.transfer.keys)
                arrived = rng.randint(0, count)
                world.shadow.write(moving.transfer, arrived)
                if arrived < count:
                    break
        for _ in range(rng.randint(0, len(self._told))):
            world.shadow.disk.take(self._told.popleft())
        self._told.clear()
        for link in self._links.values():
            link.busy_until = world.time

    # -------------------------------------------------------------------------- moments

    def _fail(self, world: World, moving: Moving, rng: random.Random) -> None:
        """All of it, one block on one rank, or one rank."""
        places, ranks = range(len(moving.transfer.source_frames)), world.shadow.ranks
        kind = rng.randrange(3)
        if moving.transfer.target is Tier.DISK or kind == 0:
            moving.failed = {(rank, place) for rank in ranks for place in places}
        elif kind == 1:
            moving.failed = {(rng.choice(ranks), rng.choice(places))}
        else:
            rank = rng.choice(ranks)
            moving.failed = {(rank, place) for place in places}

    def _be_late(self, world: World, moving: Moving, end: float, rng: random.Random) -> None:
        """Now and then the disk is stuck for a while: most of what is read then comes when it goes on."""
        if end > self._stuck_until and rng.random() < self._config.late_share:
            self._stuck_until = end + 10 ** rng.uniform(-3, 1)
        if end > self._stuck_until:
            return
        places = range(len(moving.transfer.source_frames))
        moving.late = {place for place in places if rng.random() < 0.7}
        moving.failed |= {(rank, place) for rank in world.shadow.ranks for place in moving.late}
        for place in moving.late:
            later = self._stuck_until + rng.uniform(0, 0.1)
            self._clock.at(later, partial(self._return, world, moving, place))

    def _move(self, world: World, moving: Moving, ranks: list[int]) -> None:
        # What was ended by hand, or begun by a store that is no more, moves nothing.
        if moving in world.under_way:
            world.move(moving, ranks)

    def _end(self, world: World, moving: Moving) -> None:
        if moving in world.under_way:
            world.end(moving)

    def _take_until(self, world: World, told: DiskDelete | DiskNote) -> None:
        """This and what was told before it reach the disk, if they have not yet."""
        while any(each is told for each in self._told):
            world.shadow.disk.take(self._told.popleft())

    def _return(self, world: World, moving: Moving, place: int) -> None:
        if moving in world.late and place in moving.late:
            world.return_frames(moving, [place])
