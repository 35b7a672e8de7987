"""Victims by worth: some of a tier are judged together, and the least of these may go before others are
looked at. To judge all for each victim would take too long.

Tests: tests/policy/test_worth_victims.py.
"""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvstore.core.ports import RowSource
from kvstore.core.types import Rows
from kvstore.policy.order import UseOrder

if TYPE_CHECKING:
    from kvstore.policy.worth import Worth

__all__ = ["Candidates"]

# Rows of a tier that are judged together; of these, one in so many may go before others are looked at.
JUDGED_MIN = 8192
JUDGED_PER_VICTIM = 32
POOL_PARTS = 32
# Where too few of these may go: so many times as many are judged.
JUDGED_AGAIN = 4
SAMPLE_RUNS = 32


class Candidates:
    """Of one tier: its rows, and those found to be of the least worth lately."""

    def __init__(self, capacity: int) -> None:
        self.order = UseOrder(capacity)
        # And where they stood then in the order: who stands there no more was used since, or has gone.
        self._pool = np.empty(0, np.intp)
        self._places = np.empty(0, np.int32)
        self._turn = 0

    @property
    def found(self) -> tuple[Rows, NDArray[np.int32], int]:
        """All that asking for victims changes."""
        return self._pool, self._places, self._turn

    @found.setter
    def found(self, found: tuple[Rows, NDArray[np.int32], int]) -> None:
        self._pool, self._places, self._turn = found

    def following(self) -> Rows:
        """The one of the least worth of those that were found and are there; none, if there is no such."""
        unused = self.order.places(self._pool) == self._places
        first: Rows = self._pool[unused][:1]
        return first

    def look_again(self) -> None:
        self._pool, self._places = self._pool[:0], self._places[:0]

    def victims(self, count: int, removable: RowSource, policy: "Worth") -> Rows:
        unused = self.order.places(self._pool) == self._places
        pool = self._pool = self._pool[unused]
        self._places = self._places[unused]
        if pool.size >= count:
            victims = removable(policy.favours.plain(pool))
            if victims.size >= count:
                return victims[:count]
        judged = max(JUDGED_MIN, JUDGED_PER_VICTIM * count)
        self._turn += 1
        while judged < len(self.order):
            rows = self.order.sample(judged, self._turn, SAMPLE_RUNS, policy.chains.use)
            victims = self._refill(rows, count, removable, policy)
            if victims.size >= count:
                return victims[:count]
            judged *= JUDGED_AGAIN
        rows = self.order.all()
        victims = self._refill(rows, count, removable, policy)
        if victims.size < count:
            victims = removable(policy.favours.last(self._least(rows, rows.size, policy)))
        return victims[:count]

    def _refill(self, rows: Rows, count: int, removable: RowSource, policy: "Worth") -> Rows:
        """Of these the least are in the pool from now on. Returns what of them may go."""
        rows = policy.favours.plain(rows)
        self._pool = self._least(rows, max(2 * count, rows.size // POOL_PARTS), policy)
        self._places = self.order.places(self._pool)
        return removable(self._pool)

    def _least(self, rows: Rows, count: int, policy: "Worth") -> Rows:
        """Of the least worth first; of equal worth in the order of use, so tails before heads."""
        worth = policy.chains.ranks(rows, policy.worth(rows))
        if count < rows.size:
            least = np.flatnonzero(worth <= np.partition(worth, count)[count])
            rows, worth = rows[least], worth[least]
        return rows[np.argsort(worth, kind="stable")][:count]
