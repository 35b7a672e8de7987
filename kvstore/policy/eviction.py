"""Least recently used, tail first: the block whose chain was used longest ago goes first.

A chain is touched from its tail to its head, so in this order a child always stands before
its parent, and evicting from the front never cuts a chain in the middle.
"""

from contextlib import AbstractContextManager, nullcontext

import numpy as np
from numpy.typing import NDArray

from kvstore.core.ports import Figures, RowSource, Use
from kvstore.core.types import Rows, Tier
from kvstore.policy.order import UseOrder

__all__ = ["Lru"]

# Rows looked at together; the scan goes on until it has enough or has seen all.
WINDOW = 256


class Lru:
    """One order a tier, oldest first; and one of what is favoured, which is looked at after the first."""

    learns = False

    def begin(self, capacity: int) -> None:
        self._orders = tuple(UseOrder(capacity) for _ in Tier)
        self._capacity = capacity
        # Whether any is: where none is, nothing of it costs, and where none ever was, it takes no memory.
        self._has_favoured = False
        self._favoured_orders: tuple[UseOrder, ...] = ()
        self._favoured = np.empty(0, np.bool_)
        self._priority = np.empty(0, np.int32)

    def use(self, use: Use) -> None:
        """Where and when is all that counts here, and that is told by `touch`."""

    def evicted(self, tier: Tier, rows: Rows) -> None:
        """Nothing is remembered of what has gone."""

    def retire(self, rows: Rows) -> None:
        """They age as all do."""

    def touch(self, tier: Tier, rows: Rows) -> None:
        if self._has_favoured:
            favoured = self._favoured[rows]
            self._favoured_orders[tier].append(rows[favoured])
            rows = rows[~favoured]
        self._orders[tier].append(rows)

    def forget(self, tier: Tier, rows: Rows) -> None:
        self._orders[tier].remove(rows)
        if self._has_favoured:
            self._favoured_orders[tier].remove(rows)

    def favour(self, rows: Rows, priorities: NDArray[np.int32]) -> None:
        if not self._favoured_orders:
            self._favoured_orders = tuple(UseOrder(self._capacity) for _ in Tier)
            self._favoured = np.zeros(self._capacity, np.bool_)
            self._priority = np.zeros(self._capacity, np.int32)
        self._favoured[rows], self._priority[rows] = True, priorities
        self._has_favoured |= rows.size > 0
        for order, favoured in zip(self._orders, self._favoured_orders, strict=True):
            order.move_to(favoured, rows)

    def unfavour(self, rows: Rows) -> None:
        if not self._has_favoured:
            return
        self._favoured[rows] = False
        for order, favoured in zip(self._orders, self._favoured_orders, strict=True):
            favoured.move_to(order, rows)
        self._has_favoured = bool(self._favoured.any())

    def told(self, tier: Tier, rows: Rows) -> Figures:
        """No worth is reckoned: the order is all."""
        return ()

    def looking(self) -> AbstractContextManager[None]:
        return nullcontext()

    def victims(self, tier: Tier, count: int, removable: RowSource) -> Rows:
        order, size = self._orders[tier], max(WINDOW, 2 * count)
        candidates = order.first(size)
        victims = removable(candidates)
        # In pieces that double, so that asking again over all so far stays linear.
        while len(victims) < count and len(candidates) == size:
            size *= 2
            candidates = order.first(size)
            victims = removable(candidates)
        if len(victims) < count and self._has_favoured:
            favoured = self._favoured_orders[tier].all()
            favoured = favoured[np.argsort(self._priority[favoured], kind="stable")]
            victims = removable(np.concatenate([candidates, favoured]))
        return victims[:count]
