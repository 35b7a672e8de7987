"""A block is worth no less than any that hangs on it: without it, they can't be read.

    W(b) = max(worth(b), W(c) for each child c of b)

Blocks that a request used stand together in the order of use, from the tail of its chain to its head, so most
of it is one running maximum, in all runs at once. What is left are the places where a run hangs on one that
was used later.
"""

import numpy as np
from numpy.typing import NDArray

from kvstore.core.types import Rows

__all__ = ["ChainWorth"]

NO_ROW = -1
# Worths as whole numbers, exact where they are compared, with room above them for the number of the run:
# where there are more than four million, they get fewer bits.
SCALE_BITS = 40
# Runs that hang on runs that hang on runs: deeper than that they are rarely, and then one is a little off.
PASSES_MAX = 4


class ChainWorth:
    """By row: the parent, and the number of its last use (`use`)."""

    def __init__(self, capacity: int) -> None:
        self._parent = np.full(capacity, NO_ROW, np.intp)
        self.use = np.zeros(capacity, np.int64)
        self._use_count = 0
        # Whether something that hangs on it was kept in the tier below.
        self._is_needed = np.zeros(capacity, np.bool_)
        # By row: its place among those that are looked at; else, of an earlier look.
        self._looked_at = np.zeros(capacity, np.intp)

    def used(self, chain: Rows) -> None:
        """Head first."""
        self._use_count += 1
        self.use[chain] = self._use_count
        parents = np.empty_like(chain)
        parents[:1], parents[1:] = NO_ROW, chain[:-1]
        # What has another parent than before is another block in the same row.
        self._is_needed[chain[self._parent[chain] != parents]] = False
        self._parent[chain] = parents

    def keep(self, rows: Rows, wanted: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Of rows given from tails to heads, which to keep below: the wanted, and what kept ones hang on."""
        kept: NDArray[np.bool_] = wanted | self._is_needed[rows]
        parents = self._parent[rows[kept]]
        self._is_needed[parents[parents != NO_ROW]] = True
        return kept

    def release(self, rows: Rows) -> None:
        """Nothing that hangs on these is of use any more."""
        self._is_needed[rows] = False

    def greatest(self, rows: Rows, own: NDArray[np.float64]) -> NDArray[np.float64]:
        """W of each row among these, given what each has by itself, which is not below zero."""
        ranks, scale = self._ranks(rows, own)
        greatest: NDArray[np.float64] = ranks / scale
        return greatest

    def ranks(self, rows: Rows, own: NDArray[np.float64]) -> NDArray[np.int64]:
        """The same on a scale of these rows' own, exact enough that equals stay equal."""
        return self._ranks(rows, own)[0]

    def _ranks(self, rows: Rows, own: NDArray[np.float64]) -> tuple[NDArray[np.int64], float]:
        """And the scale: what a worth of one would be."""
        most = float(own.max(initial=0.0))
        if most == 0.0:
            return np.zeros(rows.size, np.int64), 1.0
        uses = self.use[rows]
        starts = np.empty(rows.size, np.int64)
        starts[:1], starts[1:] = 0, uses[1:] != uses[:-1]
        run = np.cumsum(starts)
        bits = min(SCALE_BITS, 62 - (int(run[-1]) + 1).bit_length())
        scale = 2**bits / most
        worth: NDArray[np.int64] = (own * scale).astype(np.int64)
        floor = run << (bits + 1)
        below, above = self._joints(rows, run)
        for _ in range(PASSES_MAX):
            worth = np.maximum.accumulate(floor + worth) - floor
            before = worth[above]
            if (before >= worth[below]).all():
                break
            np.maximum.at(worth, above, worth[below])
        else:
            worth = np.maximum.accumulate(floor + worth) - floor
        return worth, scale

    def _joints(self, rows: Rows, run: NDArray[np.int64]) -> tuple[Rows, Rows]:
        """Places of rows whose parent is in another run, and of these parents."""
        self._looked_at[rows] = np.arange(rows.size)
        parents = self._parent[rows]
        places = self._looked_at[parents]
        joins = (parents != NO_ROW) & (places < rows.size)
        below = np.flatnonzero(joins)
        above = places[below]
        joins = (rows[above] == parents[below]) & (run[above] != run[below])
        return below[joins], above[joins]
