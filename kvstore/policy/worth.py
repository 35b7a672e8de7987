"""Eviction by worth: what is expected to be read the least, for each second that it takes a frame, goes
first.

What comes back, and when, is learned as it happens (`returns.py`), by kinds of uses (`kinds.py`), of cached
blocks as of evicted ones (`ghosts.py`). Nothing has to be told for that but the uses. That a session is over
is taken as a fact: what nobody else has used is worth nothing then.

A block is worth no less than what hangs on it (`chain_worth.py`): so a chain is evicted from its tail.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from kvstore.core.ports import Figures, RowSource, Use
from kvstore.core.types import Rows, Tier
from kvstore.policy.candidates import Candidates
from kvstore.policy.chain_worth import ChainWorth
from kvstore.policy.favours import Favours
from kvstore.policy.ghosts import Ghosts
from kvstore.policy.kinds import UNKNOWN, Kinds, bucket
from kvstore.policy.order import NEVER
from kvstore.policy.returns import Returns

__all__ = ["Worth"]

# Tokens of a prompt that are new, where it goes on from known blocks: buckets, and that of any other prompt.
NEW_EDGES = (128, 1024, 8192)
ALL_NEW = 1 + len(NEW_EDGES)
# Turns from here on are alike.
TURN_MAX = 5
# Of a chat: what is remembered of a turn's number. A prompt that is asked again goes on from itself.
TURNS_COUNTED = np.iinfo(np.int16).max
# Uses and children of a block are counted so far.
COUNTED = np.iinfo(np.uint8).max
# Where a block was not used twice yet.
NO_GAP = -1.0
# The kind of blocks of sessions that are over: worth nothing.
RETIRED = np.int16(-1)

# What is known by kinds and ages.
Learned = Callable[[NDArray[np.int16], NDArray[np.float64]], NDArray[np.float64]]


class Worth:
    learns = True

    def begin(self, capacity: int) -> None:
        self._kinds = Kinds()
        self.returns = Returns(self._kinds)
        self._ghosts = Ghosts(capacity)
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

    def use(self, use: Use) -> None:
        if not use.rows.size:
            return
        self.changes += 1
        self._now = now = max(self._now, use.time)
        self._begun = min(self._begun, now)
        ghosts, returns = self._ghosts, self.returns
        places, ghost, is_known = ghosts.find(use.hashes)
        ages, known = now - ghost["time"], 0
        if is_known.any():
            known = use.rows.size - int(is_known[::-1].argmax())
            returns.read(ghost["kind"][is_known], ages[is_known])
        turn, gap = self._turn(ghost[:known], now, use.session_turn)
        request = (
            min(turn, TURN_MAX),
            bucket(use.prompt_tokens, first=1000, factor=4),
            bucket(use.answer_tokens, first=32, factor=2),
            1 + bucket(gap, first=4, factor=2, levels=7) if turn else 0,
            _new(use, known),
        )
        uses = (np.minimum(ghost["uses"], COUNTED - 1) + 1) * is_known
        gaps = _mean_gaps(ghost["gap"], ages, is_known)
        children = _children(ghost["children"], is_known, known)
        branches = np.maximum.accumulate(children[::-1])[::-1]
        kinds = self._kinds.of(request, uses, gaps, branches)
        returns.used(now, kinds)
        is_shared = is_known & ghost["is_shared"]
        if not turn:
            is_shared[:known] = True
        ghost["hash"], ghost["time"], ghost["kind"], ghost["uses"] = use.hashes, now, kinds, uses
        ghost["turn"], ghost["length"], ghost["is_shared"] = turn, use.rows.size, is_shared
        ghost["gap"], ghost["children"] = gaps, children
        ghosts.put(places, ghost)
        rows = use.rows
        self._time[rows], self._kind[rows] = now, kinds
        self.chains.used(rows)
        self._is_shared[rows] = is_shared

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
        self.returns.ended(self._kind[rows], self._now - self._time[rows])
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
        kept, judged = [candidates.found for candidates in self._tiers], self.returns.judged
        try:
            yield
        finally:
            self.returns.judged = judged
            for candidates, found in zip(self._tiers, kept, strict=True):
                candidates.found = found

    def told(self, tier: Tier, rows: Rows) -> Figures:
        """Reads for each second in a frame: the least and the most of these, and of the next that stays."""
        if not rows.size:
            return ()
        with self.looking():
            following = self._tiers[tier].following()
            worth = self.worth(np.concatenate([rows, following]))
        went, stays = worth[: rows.size], worth[rows.size :]
        figures = (
            ("worth_least_reads_per_second", float(went.min())),
            ("worth_most_reads_per_second", float(went.max())),
        )
        if not stays.size:
            return figures
        return (*figures, ("worth_kept_reads_per_second", float(stays[0])))

    @property
    def watched_seconds(self) -> float:
        """For how long uses have been seen: what comes back later than that could not be learned yet."""
        return max(0.0, self._now - self._begun)

    def worth(self, rows: Rows) -> NDArray[np.float64]:
        """Of each block, now: reads for each second in a frame."""
        return self._learned(rows, self.returns.worth)

    def chance_with_children(self, rows: Rows) -> NDArray[np.float64]:
        """That each block is read again at all, or one of these that hangs on it."""
        return self.chains.greatest(rows, self._learned(rows, self.returns.chance))

    # ------------------------------------------------------------------ helpers

    def _learned(self, rows: Rows, of: Learned) -> NDArray[np.float64]:
        """Of the kind and the age of each block; nothing of those of sessions that are over."""
        kinds = self._kind[rows]
        retired = kinds == RETIRED
        values = of(np.where(retired, np.int16(UNKNOWN), kinds), self._now - self._time[rows])
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

    def _turn(self, known: NDArray[np.void], now: float, told: int) -> tuple[int, float]:
        """How many turns a request goes on from, and the seconds since the last. It goes on from an earlier
        one if that is told, or if it holds all of that, but for a last block that was not full; a lone block
        is anybody's."""
        if known.size < 2:
            return min(told, TURNS_COUNTED), math.inf
        last = known[-1]
        gap = now - float(last["time"])
        if told:
            return min(told, TURNS_COUNTED), gap
        if known.size < last["length"] - 1:
            return 0, gap
        return min(int(last["turn"]) + 1, TURNS_COUNTED), gap


def _new(use: Use, known: int) -> int:
    """How many tokens of a prompt are new, after so many blocks that are known: a bucket. A lone block is
    anybody's."""
    if known < 2:
        return ALL_NEW
    return bisect_right(NEW_EDGES, use.prompt_tokens * (1 - known / use.rows.size))


def _mean_gaps(
    before: NDArray[np.float32], ages: NDArray[np.float64], is_known: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """The mean time between the uses of each block, after one more; the latest counts for half of it."""
    gaps: NDArray[np.float64] = np.where(before < 0, ages, (before + ages) / 2)
    gaps[~is_known] = NO_GAP
    return gaps


def _children(before: NDArray[np.uint8], is_known: NDArray[np.bool_], known: int) -> NDArray[np.uint8]:
    """How many different blocks have followed on each block of a chain; after so many that are known, all
    are new. One whose place in the table another has taken is no new one."""
    children: NDArray[np.uint8] = before * is_known
    children[known:-1] = 1
    if 0 < known < children.size:
        children[known - 1] = min(int(children[known - 1]) + 1, COUNTED)
    return children
