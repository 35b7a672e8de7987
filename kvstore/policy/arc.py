"""Adaptive replacement (ARC; Megiddo and Modha, FAST 2003).

Two orders of recency, of what was used once and of what was used again, and of both what was evicted lately.
How much of the tier the first may have, `share`, moves by which of the evicted comes back.

Room is made for a whole request before its blocks are seen to come: so the share that counts is the one that
was learned up to the request before.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from kvstore.core.types import Rows
from kvstore.policy.classic import Classic

__all__ = ["Arc"]


class Arc(Classic):
    def __init__(self, capacities: Sequence[int]) -> None:
        """In frames, of each tier there is."""
        self._tiers = tuple(_Recency(capacity) for capacity in capacities)


class _Recency:
    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._share = 0.0
        # Rows that were used once, and again, least recent first; and hashes of what went from each.
        self._once: OrderedDict[int, None] = OrderedDict()
        self._again: OrderedDict[int, None] = OrderedDict()
        self._once_gone: OrderedDict[int, None] = OrderedDict()
        self._again_gone: OrderedDict[int, None] = OrderedDict()
        # By row that was there and was not evicted: the hash of its block.
        self._hash: dict[int, int] = {}

    def touch(self, blocks: Iterator[tuple[int, int]]) -> None:
        for row, hashed in blocks:
            self.forget_row(row)
            if self._hash.get(row) == hashed or self._came_back(hashed):
                self._again[row] = None
            else:
                self._once[row] = None
            self._hash[row] = hashed
        self._trim()

    def forget(self, rows: Rows) -> None:
        for row in rows.tolist():
            self.forget_row(row)

    def forget_row(self, row: int) -> None:
        self._once.pop(row, None)
        self._again.pop(row, None)

    def evicted(self, blocks: Iterator[tuple[int, int]]) -> None:
        for row, hashed in blocks:
            gone = self._once_gone if row in self._once else self._again_gone
            gone[hashed] = None
            del self._hash[row]

    def order(self) -> Iterator[int]:
        """Of what was used once as long as there is more of it than its share."""
        once, again = iter(self._once), iter(self._again)
        left = len(self._once)
        while left and left > self._share:
            yield next(once)
            left -= 1
        yield from again
        yield from once

    def _came_back(self, hashed: int) -> bool:
        """Whether it went from here lately; if so, the share moves its way."""
        once, again = len(self._once_gone), len(self._again_gone)
        if hashed in self._once_gone:
            self._share = min(float(self._capacity), self._share + max(again / once, 1.0))
            del self._once_gone[hashed]
            return True
        if hashed in self._again_gone:
            self._share = max(0.0, self._share - max(once / again, 1.0))
            del self._again_gone[hashed]
            return True
        return False

    def _trim(self) -> None:
        while self._once_gone and len(self._once) + len(self._once_gone) > self._capacity:
            self._once_gone.popitem(last=False)
        here = len(self._once) + len(self._again)
        while self._again_gone and here + len(self._once_gone) + len(self._again_gone) > 2 * self._capacity:
            self._again_gone.popitem(last=False)
