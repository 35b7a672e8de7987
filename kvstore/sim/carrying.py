"""Transfers under way, and who decides when and how well they end: by hand, or by the clock (`links.py`)."""

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from kvstore.core.effects import DiskDelete, DiskNote, DiskSync, Transfer
from kvstore.core.types import Tier
from kvstore.sim.shadow import Failed

if TYPE_CHECKING:
    from kvstore.sim.world import World

__all__ = ["ByHand", "Carrier", "Moving"]


@dataclass(slots=True, eq=False)
class Moving:
    """A transfer under way. Its bytes move at some moment between its start and its end, on each rank
    at another."""

    transfer: Transfer
    failed: Failed = field(default_factory=set)
    # The write that was under way when this one, a write too, was begun: it moves first, and where it has
    # failed this one fails.
    before: "Moving | None" = None
    # What the disk was told last before this write was begun.
    told_before: DiskDelete | DiskNote | None = None
    # Places of a read that end too late: the device still writes to their frames after the end.
    late: set[int] = field(default_factory=set)
    moved: set[int] = field(default_factory=set)
    # All its bytes have moved.
    done: bool = False


class Carrier(Protocol):
    """Decides when and how well what the store has started is done."""

    def carry(self, world: "World", moving: Moving) -> None: ...
    def tell_disk(self, world: "World", told: DiskDelete | DiskNote) -> None: ...
    def before_write(self, world: "World", moving: Moving) -> None: ...
    def sync(self, world: "World", sync: DiskSync) -> None: ...


class ByHand:
    """For tests: transfers end when they are told to, and some fail."""

    def __init__(self, rng: random.Random, fail_share: float) -> None:
        self._random, self._fail_share = rng, fail_share

    def carry(self, world: "World", moving: Moving) -> None:
        count = len(moving.transfer.source_frames)
        if self._random.random() < self._fail_share:
            whole = moving.transfer.target is Tier.DISK
            places = range(count) if whole else [self._random.randrange(count)]
            moving.failed = {(self._random.choice(world.shadow.ranks), place) for place in places}
            if moving.transfer.source is Tier.DISK and self._random.random() < 0.5:
                moving.late = {place for _, place in moving.failed}
        if self._random.random() < 0.5:
            world.move(moving)

    def tell_disk(self, world: "World", told: DiskDelete | DiskNote) -> None:
        world.shadow.disk.take(told)

    def before_write(self, world: "World", moving: Moving) -> None:
        """What was told has reached the disk already."""

    def sync(self, world: "World", sync: DiskSync) -> None:
        """It is to be ended by hand: `end_sync`."""
