"""The order of use of rows, kept as a log: each use is appended, and an entry counts as long as it is its
row's last one. So a use costs three numpy calls, however many rows it names, and nothing is ever searched.
"""

import numpy as np
from numpy.typing import NDArray

from kvstore.core.types import Rows

__all__ = ["NEVER", "UseOrder"]

# Entries that may count no more beside as many as do: a log that has few rows is kept as short as they are.
DEAD_MIN = 4096

# No place in a log, which begins at 1: so tables of tiers that there are not take no memory.
NEVER = 0


class UseOrder:
    """Of the rows of one tier, oldest first."""

    def __init__(self, capacity: int) -> None:
        # When it is full, what counts is moved to the front: at the most half of it.
        self._log = np.zeros(1 + 2 * capacity, np.int32)
        self._begin = self._end = 1
        # Where in the log each row's last use stands; and how many rows there are.
        self._place = np.zeros(capacity, np.int32)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, rows: Rows) -> None:
        self._count += rows.size - int(np.count_nonzero(self._place[rows]))
        dead = self._end - self._begin - self._count
        if self._end + rows.size > self._log.size or dead > self._count + DEAD_MIN:
            self._compact()
        begin, self._end = self._end, self._end + rows.size
        self._log[begin : self._end] = rows
        self._place[rows] = np.arange(begin, self._end, dtype=np.int32)

    def remove(self, rows: Rows) -> None:
        self._count -= int(np.count_nonzero(self._place[rows]))
        self._place[rows] = NEVER

    def move_to(self, other: "UseOrder", rows: Rows) -> None:
        """Of these rows those that are here stand last in the other order from now on."""
        rows = rows[self._place[rows] != NEVER]
        self.remove(rows)
        other.append(rows)

    def places(self, rows: Rows) -> NDArray[np.int32]:
        """Where each row stands: another place after each use, until the log is compacted; NEVER, if it is
        not here."""
        places: NDArray[np.int32] = self._place[rows]
        return places

    def all(self) -> Rows:
        return self._counting(self._begin, self._end)

    def first(self, count: int) -> Rows:
        """The `count` oldest rows, or all if there are fewer."""
        # Some more places than rows: a few count no more.
        end = min(self._begin + count + count // 4, self._end)
        rows = self._counting(self._begin, end)
        looked = end
        while rows.size < count and end < self._end:
            # Half of a log that was never compacted may count no more; so this ends soon.
            begin, end = end, min(2 * end - self._begin, self._end)
            rows = np.concatenate([rows, self._counting(begin, end)])
        if end > looked:
            self._close_up(rows, end)
        elif rows.size:
            self._begin = int(self._place[rows[0]])
        return rows[:count]

    def sample(self, count: int, turn: int, runs: int, together: NDArray[np.int64]) -> Rows:
        """About `count` rows in `runs` pieces, evenly from old to new; all, if there are no more. Other
        `turn`s bring other pieces. As many places are looked at as hold so many rows that count.

        `together`: by row, a number that those share which were appended together. Of such the last are not
        here without the first: where a piece begins in their midst, its beginning is left out.
        """
        if self._count <= count:
            return self.all()
        span = self._end - self._begin
        piece = count * span // (self._count * runs)
        # Multiples of the golden ratio fill the span evenly, whatever the number of turns.
        offset = int((turn * 0.6180339887498949 % 1.0) * span)
        starts = offset + np.arange(runs) * (span // runs)
        places = (starts[:, None] + np.arange(-1, piece)) % span + self._begin
        rows = self._log[places].astype(np.intp)
        numbers = together[rows]
        is_cut = (numbers[:, 1:] == numbers[:, :1]).cumprod(axis=1, dtype=np.bool_)
        whole = ~is_cut & (self._place[rows[:, 1:]] == places[:, 1:])
        sampled: Rows = rows[:, 1:][whole]
        return sampled

    def _counting(self, begin: int, end: int) -> Rows:
        rows = self._log[begin:end].astype(np.intp)
        counting: Rows = rows[self._place[rows] == np.arange(begin, end, dtype=np.int32)]
        return counting

    def _close_up(self, rows: Rows, end: int) -> None:
        """These are all that count before `end`: from now on they stand side by side there, so that the next
        look finds them at once."""
        self._begin = end - rows.size
        self._log[self._begin : end] = rows
        self._place[rows] = np.arange(self._begin, end, dtype=np.int32)

    def _compact(self) -> None:
        rows = self._counting(self._begin, self._end)
        self._begin, self._end = 1, 1 + rows.size
        self._log[1 : self._end] = rows
        self._place[rows] = np.arange(1, self._end, dtype=np.int32)
