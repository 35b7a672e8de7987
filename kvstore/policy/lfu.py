"""Least frequently used, with ageing (LFU-DA; Arlitt and others, 2000).

    key(b) = age + uses(b)        age = the greatest key that was ever evicted

So a block that was used often loses its advantage as others are evicted, and does not stay for ever.
"""

import heapq
from collections.abc import Iterator

from kvstore.core.types import Rows, Tier
from kvstore.policy.classic import Classic

__all__ = ["LfuAgeing"]

# A heap is built anew when it is so many times as large as what counts in it.
SLACK = 4


class LfuAgeing(Classic):
    """A heap a tier, of keys with the number of the touch, for ties go by recency. Old entries are left in
    it and passed over."""

    def begin(self, capacity: int) -> None:
        super().begin(capacity)
        self._tiers = tuple(_Frequencies() for _ in Tier)


class _Frequencies:
    def __init__(self) -> None:
        self._age = 0
        self._touches = 0
        # By row: the hash of its block, and how often it was used since it came to the tier.
        self._uses: dict[int, tuple[int, int]] = {}
        # By row that is there: its entry of the heap that counts.
        self._entry: dict[int, tuple[int, int, int]] = {}
        self._heap: list[tuple[int, int, int]] = []

    def touch(self, blocks: Iterator[tuple[int, int]]) -> None:
        for row, hashed in blocks:
            self._touches += 1
            before = self._uses.get(row)
            uses = before[1] + 1 if before is not None and before[0] == hashed else 1
            self._uses[row] = (hashed, uses)
            self._entry[row] = entry = (self._age + uses, self._touches, row)
            heapq.heappush(self._heap, entry)
        if len(self._heap) > SLACK * len(self._entry) + SLACK:
            self._heap = sorted(self._entry.values())

    def forget(self, rows: Rows) -> None:
        for row in rows.tolist():
            self._entry.pop(row, None)

    def evicted(self, blocks: Iterator[tuple[int, int]]) -> None:
        for row, _ in blocks:
            self._age = max(self._age, self._entry[row][0])
            del self._uses[row]

    def order(self) -> Iterator[int]:
        drawn: list[tuple[int, int, int]] = []
        try:
            while self._heap:
                entry = heapq.heappop(self._heap)
                if self._entry.get(entry[2]) == entry:
                    drawn.append(entry)
                    yield entry[2]
        finally:
            # Those that were passed over for good are not put back.
            for entry in drawn:
                heapq.heappush(self._heap, entry)
