"""What is favoured goes last, by priority, whatever the order of all else is."""

from collections.abc import Iterable
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from kvstore.core.ports import RowSource
from kvstore.core.types import Rows

__all__ = ["Favours"]

# Rows looked at together, at the least.
WINDOW = 256


class Favours:
    """By row: its priority, or nothing."""

    def __init__(self, capacity: int) -> None:
        self._favoured = np.zeros(capacity, np.bool_)
        self._priority = np.zeros(capacity, np.int32)
        # Whether any is: where none is, nothing of it costs.
        self.has_any = False

    def add(self, rows: Rows, priorities: NDArray[np.int32]) -> None:
        self._favoured[rows], self._priority[rows] = True, priorities
        self.has_any |= rows.size > 0

    def remove(self, rows: Rows) -> None:
        self._favoured[rows] = False
        self.has_any = self.has_any and bool(self._favoured.any())

    def plain(self, rows: Rows) -> Rows:
        """Those that are not favoured."""
        return rows[~self._favoured[rows]] if self.has_any else rows

    def last(self, rows: Rows) -> Rows:
        """In their order, but what is favoured behind all else, by priority."""
        if not self.has_any:
            return rows
        ranks = np.where(self._favoured[rows], self._priority[rows].astype(np.int64), np.iinfo(np.int64).min)
        return rows[np.argsort(ranks, kind="stable")]

    def choose(self, order: Iterable[int], count: int, removable: RowSource) -> Rows:
        """The first `count` of the order that may go. No more of the order is drawn than is needed, in pieces
        that double: so asking again over all so far stays linear."""
        source, size = iter(order), max(WINDOW, 2 * count)
        drawn = np.empty(0, np.intp)
        while True:
            more = np.fromiter(islice(source, size), np.intp)
            drawn = np.concatenate([drawn, more])
            victims = removable(self.plain(drawn))
            if len(victims) >= count:
                return victims[:count]
            if len(more) < size:
                break
            size = len(drawn)
        return removable(self.last(drawn))[:count]
