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
        # All rows of the tier, judged, as of which of the policy's changes: who finds too few that may go
        # asks again, and spares fewer.
        self._all: dict[bool, _Judged] = {}
        self._all_as_of = 0

    @property
    def found(self) -> tuple[Rows, NDArray[np.int32], int]:
        """All that asking for victims changes."""
        return self._pool, self._places, self._turn

    @found.setter
    def found(self, found: tuple[Rows, NDArray[np.int32], int]) -> None:
        self._pool, self._places, self._turn = found

    def following(self) -> Rows:
        """The one of the least worth of those that were found and are there; none, if there is no such."""
        unused = (self.order.places(self._pool) == self._places).tobytes().find(1)
        return self._pool[unused : unused + 1] if unused >= 0 else self._pool[:0]

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
            victims = self._refill(_Judged(policy.favours.plain(rows), policy), count, removable)
            if victims.size >= count:
                return victims[:count]
            judged *= JUDGED_AGAIN
        victims = self._refill(self._judge_all(policy, with_favoured=False), count, removable)
        if victims.size < count:
            everything = self._judge_all(policy, with_favoured=True)
            victims = removable(policy.favours.last(everything.least(everything.size)))
        return victims[:count]

    def _judge_all(self, policy: "Worth", *, with_favoured: bool) -> "_Judged":
        """Once, however often it is asked for until something changes."""
        if self._all_as_of != policy.changes:
            self._all.clear()
            self._all_as_of = policy.changes
        with_favoured &= policy.favours.has_any
        judged = self._all.get(with_favoured)
        if judged is None:
            rows = self.order.all()
            judged = _Judged(rows if with_favoured else policy.favours.plain(rows), policy)
            self._all[with_favoured] = judged
        return judged

    def _refill(self, judged: "_Judged", count: int, removable: RowSource) -> Rows:
        """Of these the least are in the pool from now on. Returns what of them may go."""
        self._pool = judged.least(max(2 * count, judged.size // POOL_PARTS))
        self._places = self.order.places(self._pool)
        return removable(self._pool)


class _Judged:
    """Rows in the order of use, and what they are worth."""

    def __init__(self, rows: Rows, policy: "Worth") -> None:
        self.size = rows.size
        self._rows = rows
        self._worth = policy.chains.ranks(rows, policy.worth(rows))
        self._in_order: Rows | None = None

    def least(self, count: int) -> Rows:
        """Of the least worth first; of equal worth in the order of use, so tails before heads."""
        if self._in_order is None and count < self.size:
            least = np.flatnonzero(self._worth <= np.partition(self._worth, count)[count])
            return self._rows[least][np.argsort(self._worth[least], kind="stable")][:count]
        if self._in_order is None:
            self._in_order = self._rows[np.argsort(self._worth, kind="stable")]
        return self._in_order[:count]
