"""Blocks that are to be kept longer than other cache, for a time.

A bias and no more: what is retained is evicted after all else, by priority, and then as anything else is.
A hit renews the time. When it has run out the block is cache as any other, used just now. Of a chain always
the leading blocks are retained, and none for a shorter time than what hangs on it.
"""

import numpy as np
from numpy.typing import NDArray

from kvstore.core.blocks import Blocks
from kvstore.core.ports import EvictionPolicy
from kvstore.core.types import TENANT_MASK, Rows, TenantId

__all__ = ["Retained"]

# How often it is looked whose time has run out.
INTERVAL_SECONDS = 1.0


class Retained:
    """By row: until when, and for how long after each hit."""

    def __init__(self, blocks: Blocks, eviction: EvictionPolicy) -> None:
        self._blocks = blocks
        self._eviction = eviction
        # Made with the first block that is retained: most services have none.
        self._until = np.empty(0, np.float64)
        self._seconds = np.empty(0, np.float64)
        self._priority = np.empty(0, np.int32)
        self.has_any = False
        self._next_look = 0.0

    def count_of(self, tenant: TenantId) -> int:
        """Blocks that this tenant has retained."""
        rows = self.rows()
        return int(np.count_nonzero(self._blocks.domain[rows] & TENANT_MASK == tenant))

    def rows(self) -> Rows:
        """All of them."""
        return np.flatnonzero(self._until)

    def is_retained(self, rows: Rows) -> NDArray[np.bool_]:
        if not self.has_any:
            return np.zeros(rows.size, np.bool_)
        retained: NDArray[np.bool_] = self._until[rows] > 0
        return retained

    def keep(self, rows: Rows, seconds: float, priority: int, now: float) -> None:
        """Leading blocks of a chain. What is retained for longer or with more priority stays so."""
        if not rows.size:
            return
        if not self._until.size:
            capacity = self._blocks.capacity
            self._until, self._seconds = np.zeros(capacity), np.zeros(capacity)
            self._priority = np.zeros(capacity, np.int32)
        known = self.is_retained(rows)
        self._priority[rows] = np.where(known, np.maximum(self._priority[rows], priority), priority)
        self._seconds[rows] = np.maximum(self._seconds[rows], seconds)
        self._until[rows] = np.maximum(self._until[rows], now + self._seconds[rows])
        self.has_any = True
        tails_first = rows[::-1]
        self._eviction.favour(tails_first, self._priority[tails_first])

    def renew(self, rows: Rows, now: float) -> None:
        """These were hit."""
        rows = rows[self.is_retained(rows)]
        if rows.size:
            self._until[rows] = np.maximum(self._until[rows], now + self._seconds[rows])

    def expire(self, now: float) -> None:
        if now < self._next_look:
            return
        self._next_look = now + INTERVAL_SECONDS
        rows = np.flatnonzero((self._until > 0) & (self._until <= now))
        self.drop(rows[np.argsort(-self._blocks.depth[rows], kind="stable")])

    def drop(self, rows: Rows) -> None:
        """These are no more than cache, tails first; or are not even that any more."""
        rows = rows[self.is_retained(rows)]
        if rows.size:
            self._until[rows] = self._seconds[rows] = 0.0
            self._priority[rows] = 0
            self._eviction.unfavour(rows)
            self.has_any = bool(self._until.any())
