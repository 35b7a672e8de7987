"""What the classic policies share: rows known again, and what is favoured.

They are kept for comparison: a use costs them some steps of Python for each block, where `Lru` and `Worth`
need a few calls for all.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvstore.core.ports import Figures, RowSource, Use
from kvstore.core.types import Rows, Tier
from kvstore.policy.favours import Favours

__all__ = ["Classic"]


class TierOrder(Protocol):
    """Of one tier. Blocks are given as row and hash of the key."""

    def touch(self, blocks: Iterator[tuple[int, int]]) -> None: ...
    def forget(self, rows: Rows) -> None: ...
    def evicted(self, blocks: Iterator[tuple[int, int]]) -> None: ...
    def order(self) -> Iterator[int]:
        """Rows, those to go first before others."""


class Classic:
    """By row: the hash of the block that was used there last. Each policy makes an order for each tier."""

    learns = True
    _tiers: Sequence[TierOrder]

    def begin(self, capacity: int) -> None:
        self._hash = np.zeros(capacity, np.uint64)
        self._favours = Favours(capacity)

    def use(self, use: Use) -> None:
        self._hash[use.rows] = use.hashes

    def touch(self, tier: Tier, rows: Rows) -> None:
        self._tiers[tier].touch(self._named(rows))

    def forget(self, tier: Tier, rows: Rows) -> None:
        self._tiers[tier].forget(rows)

    def evicted(self, tier: Tier, rows: Rows) -> None:
        self._tiers[tier].evicted(self._named(rows))

    def retire(self, rows: Rows) -> None:
        """They age as all do."""

    def favour(self, rows: Rows, priorities: NDArray[np.int32]) -> None:
        self._favours.add(rows, priorities)

    def unfavour(self, rows: Rows) -> None:
        self._favours.remove(rows)

    def told(self, tier: Tier, rows: Rows) -> Figures:
        """No worth is reckoned: the order is all."""
        return ()

    def looking(self) -> AbstractContextManager[None]:
        return nullcontext()

    def victims(self, tier: Tier, count: int, removable: RowSource) -> Rows:
        return self._favours.choose(self._tiers[tier].order(), count, removable)

    def _named(self, rows: Rows) -> Iterator[tuple[int, int]]:
        return zip(rows.tolist(), self._hash[rows].tolist(), strict=True)
