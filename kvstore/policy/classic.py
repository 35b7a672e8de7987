"""What the classic policies share: rows known again, and what is favoured.

They are kept for comparison: a use costs them some steps of Python for each block, where `Lru` and `Worth`
need a few calls for all.
"""

import numpy as np
from numpy.typing import NDArray

from kvstore.core.ports import Use
from kvstore.core.types import Rows
from kvstore.policy.favours import Favours

__all__ = ["Classic"]


class Classic:
    """By row: the hash of the block that was used there last."""

    learns = True

    def begin(self, capacity: int) -> None:
        self._hash = np.zeros(capacity, np.uint64)
        self._favours = Favours(capacity)

    def use(self, use: Use) -> None:
        self._hash[use.rows] = use.hashes

    def retire(self, rows: Rows) -> None:
        """They age as all do."""

    def favour(self, rows: Rows, priorities: NDArray[np.int32]) -> None:
        self._favours.add(rows, priorities)

    def unfavour(self, rows: Rows) -> None:
        self._favours.remove(rows)
