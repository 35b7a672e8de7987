"""Least recently used, tail first: the block whose chain was used longest ago goes first.

A chain is touched from its tail to its head, so in this order a child always stands before
its parent, and evicting from the front never cuts a chain in the middle.
"""

import numpy as np
from numpy.typing import NDArray

from kvstore.core.ports import RowSource
from kvstore.core.types import Rows, Tier

__all__ = ["Lru"]

# Rows looked at together; the scan goes on until it has enough or has seen all.
WINDOW = 256
# No place in a log, which begins at 1: so tables of tiers that there are not take no memory.
NEVER = 0


class Lru:
    """One order a tier, oldest first; and one of what is favoured, which is looked at after the first."""

    def begin(self, capacity: int) -> None:
        self._orders = tuple(_Order(capacity) for _ in Tier)
        self._capacity = capacity
        # Whether any is: where none is, nothing of it costs, and where none ever was, it takes no memory.
        self._has_favoured = False
        self._favoured_orders: tuple[_Order, ...] = ()
        self._favoured = np.empty(0, np.bool_)
        self._priority = np.empty(0, np.int32)

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
            self._favoured_orders = tuple(_Order(self._capacity) for _ in Tier)
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


class _Order:
    """Each use is appended to a log; an entry counts as long as it is its row's last one.

    So a use costs three numpy calls, however many rows it names, and nothing is ever searched.
    """

    def __init__(self, capacity: int) -> None:
        # When it is full, what counts is moved to the front: at the most half of it.
        self._log = np.zeros(1 + 2 * capacity, np.int32)
        self._begin = self._end = 1
        # Where in the log each row's last use stands.
        self._place = np.zeros(capacity, np.int32)

    def append(self, rows: Rows) -> None:
        if self._end + rows.size > self._log.size:
            self._compact()
        begin, self._end = self._end, self._end + rows.size
        self._log[begin : self._end] = rows
        self._place[rows] = np.arange(begin, self._end, dtype=np.int32)

    def remove(self, rows: Rows) -> None:
        self._place[rows] = NEVER

    def move_to(self, other: "_Order", rows: Rows) -> None:
        """Of these rows those that are here stand last in the other order from now on."""
        rows = rows[self._place[rows] != NEVER]
        self.remove(rows)
        other.append(rows)

    def all(self) -> Rows:
        return self._counting(self._begin, self._end)

    def first(self, count: int) -> Rows:
        """The `count` oldest rows, or all if there are fewer."""
        rows = self._counting(self._begin, min(self._begin + count, self._end))
        end = self._begin + count
        while len(rows) < count and end < self._end:
            # Half of a log that was never compacted may count no more; so this ends soon.
            begin, end = end, min(2 * end - self._begin, self._end)
            rows = np.concatenate([rows, self._counting(begin, end)])
        if rows.size:
            self._begin = int(self._place[rows[0]])
        return rows[:count]

    def _counting(self, begin: int, end: int) -> Rows:
        rows = self._log[begin:end].astype(np.intp)
        counting: Rows = rows[self._place[rows] == np.arange(begin, end, dtype=np.int32)]
        return counting

    def _compact(self) -> None:
        rows = self._counting(self._begin, self._end)
        self._begin, self._end = 1, 1
        self.append(rows)
