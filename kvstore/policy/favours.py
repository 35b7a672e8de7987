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

    def add(self, rows: Rows, priorities: NDArray[np.int32]) -> None:
        self._favoured[rows], self._priority[rows] = True, priorities

    def remove(self, rows: Rows) -> None:
        self._favoured[rows] = False

    def choose(self, order: Iterable[int], count: int, removable: RowSource) -> Rows:
        """The first `count` of the order that may go. No more of the order is drawn than is needed, in pieces
        that double: so asking again over all so far stays linear."""
        source, size = iter(order), max(WINDOW, 2 * count)
        drawn = np.empty(0, np.intp)
        while True:
            more = np.fromiter(islice(source, size), np.intp)
            drawn = np.concatenate([drawn, more])
            plain = drawn[~self._favoured[drawn]]
            victims = removable(plain)
            if len(victims) >= count:
                return victims[:count]
            if len(more) < size:
                break
            size = len(drawn)
        favoured = drawn[self._favoured[drawn]]
        favoured = favoured[np.argsort(self._priority[favoured], kind="stable")]
        return removable(np.concatenate([plain, favoured]))[:count]
