"""Eviction by worth: what is expected to be read the least, for each second that it takes a frame, goes
first.

What comes back, and when, is learned as it happens (`returns.py`), by kinds of uses (`kinds.py`), of cached
blocks as of evicted ones (`ghosts.py`). Nothing has to be told for that but the uses. That a session is over
is taken as a fact: what nobody else has used is worth nothing then.

A block is worth no less than what hangs on it (`chain_worth.py`): so a chain is evicted from its tail.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from kvstore.core.ports import Figures, RowSource, Use
from kvstore.core.types import Rows, Tier
from kvstore.policy.candidates import Candidates
from kvstore.policy.chain_worth import ChainWorth
from kvstore.policy.favours import Favours
from kvstore.policy.kinds import KINDS_MAX, UNKNOWN
from kvstore.policy.learning import Learning
from kvstore.policy.lots import lots
from kvstore.policy.order import NEVER

__all__ = ["Worth"]

# The kind of blocks of sessions that are over: worth nothing.
RETIRED = np.int16(-1)

# What is known by kinds and ages.
Learned = Callable[[NDArray[np.int16], NDArray[np.float64]], NDArray[np.float64]]


class Worth:
    learns = True

    def __init__(self, kinds_max: int = KINDS_MAX) -> None:
        """`kinds_max`: of uses, as many as are told apart (`kinds.py`)."""
        self._kinds_max = kinds_max

    def begin(self, capacity: int) -> None:
        self.learning = Learning(capacity, self._kinds_max)
        self._now = 0.0
        # When the first use was.
        self._begun = math.inf
        # By row, at its last use: the kind that it counts as, the time, and whether other chains use it.
        self._kind = np.full(capacity, UNKNOWN, np.int16)
        self._time = np.zeros(capacity)
        self._is_shared = np.zeros(capacity, np.bool_)
        self.chains = ChainWorth(capacity)
        self._tiers = tuple(Candidates(capacity) for _ in Tier)
        self.favours = Favours(capacity)
        # Whether a row may be RETIRED: where none is, nothing of it costs.
        self._has_retired = False
        # Raised by whatever may change what a block is worth, or which blocks there are.
        self.changes = 0

    # ------------------------------------------------------------------ what is told

    def use(self, time: float, uses: Sequence[Use]) -> None:
        self.changes += 1
        for lot in lots(uses):
            self._now = now = max(self._now, time)
            self._begun = min(self._begun, now)
            kinds, is_shared = self.learning.use(now, lot)
            rows = lot.rows
            self._time[rows], self._kind[rows], self._is_shared[rows] = now, kinds, is_shared
            self.chains.used(lot)

    def touch(self, tier: Tier, rows: Rows) -> None:
        self.changes += 1
        self._tiers[tier].order.append(rows)

    def forget(self, tier: Tier, rows: Rows) -> None:
        self.changes += 1
        self._tiers[tier].order.remove(rows)
        if self._has_retired:
            self._revive(rows)

    def evicted(self, tier: Tier, rows: Rows) -> None:
        """What was used is remembered from its use on."""

    def retire(self, rows: Rows) -> None:
        rows = rows[~self._is_shared[rows] & (self._kind[rows] != RETIRED)]
        self.learning.returns.ended(self._kind[rows], self._now - self._time[rows])
        self._kind[rows] = RETIRED
        self._has_retired |= rows.size > 0
        self.chains.release(rows)
        self._look_again()

    def favour(self, rows: Rows, priorities: NDArray[np.int32]) -> None:
        self.favours.add(rows, priorities)
        self._look_again()

    def unfavour(self, rows: Rows) -> None:
        self.favours.remove(rows)
        self._time[rows] = self._now
        for candidates in self._tiers:
            candidates.order.move_to(candidates.order, rows)
        self._look_again()

    # ------------------------------------------------------------------ what is asked

    def victims(self, tier: Tier, count: int, removable: RowSource) -> Rows:
        return self._tiers[tier].victims(count, removable, self)

    @contextmanager
    def looking(self) -> Iterator[None]:
        kept, judged = [candidates.found for candidates in self._tiers], self.learning.returns.judged
        try:
            yield
        finally:
            self.learning.returns.judged = judged
            for candidates, found in zip(self._tiers, kept, strict=True):
                candidates.found = found

    def told(self, tier: Tier, rows: Rows) -> Figures:
        """Reads for each second in a frame: the least and the most of these, and of the next that stays."""
        if not rows.size:
            return ()
        returns, following = self.learning.returns, self._tiers[tier].following()
        judged = returns.judged
        worth = self.worth(np.concatenate([rows, following]))
        returns.judged = judged
        went = worth[: rows.size]
        figures = (
            ("worth_least_reads_per_second", float(went.min())),
            ("worth_most_reads_per_second", float(went.max())),
        )
        if not following.size:
            return figures
        return (*figures, ("worth_kept_reads_per_second", float(worth[-1])))

    @property
    def watched_seconds(self) -> float:
        """For how long uses have been seen: what comes back later than that could not be learned yet."""
        return max(0.0, self._now - self._begun)

    def worth(self, rows: Rows) -> NDArray[np.float64]:
        """Of each block, now: reads for each second in a frame."""
        return self._learned(rows, self.learning.returns.worth)

    def chance_with_children(self, rows: Rows) -> NDArray[np.float64]:
        """That each block is read again at all, or one of these that hangs on it."""
        return self.chains.greatest(rows, self._learned(rows, self.learning.returns.chance))

    # ------------------------------------------------------------------ helpers

    def _learned(self, rows: Rows, of: Learned) -> NDArray[np.float64]:
        """Of the kind and the age of each block; nothing of those of sessions that are over."""
        kinds, ages = self._kind[rows], self._now - self._time[rows]
        if not self._has_retired:
            return of(kinds, ages)
        retired = kinds == RETIRED
        values = of(np.where(retired, np.int16(UNKNOWN), kinds), ages)
        values[retired] = 0.0
        return values

    def _revive(self, rows: Rows) -> None:
        """Of these, what is in no tier's order any more is in use again, or has gone: it is not over, nor is
        what will be in its row, though nobody may tell of its use."""
        rows = rows[self._kind[rows] == RETIRED]
        for candidates in self._tiers:
            rows = rows[candidates.order.places(rows) == NEVER]
        self._kind[rows], self._time[rows] = UNKNOWN, self._now

    def _look_again(self) -> None:
        """What was found to be of the least worth may not be so any more."""
        self.changes += 1
        for candidates in self._tiers:
            candidates.look_again()
