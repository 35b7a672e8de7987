"""What uses tell: how soon their blocks have come back, and of what kind they are from now on.

Chains that are used at one moment are looked at together, and all comes out as if they had been used one
after the other.

Tests: tests/policy/test_worth_features.py, test_worth_lots.py.
"""

import math
from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

from kvstore.core.ports import Use
from kvstore.policy.again import NOTHING_BEFORE, find_again
from kvstore.policy.ghosts import CHILDREN, COUNTED, SHARED, USES, Ghosts
from kvstore.policy.kinds import CHILDREN_MAX, UNKNOWN, Kinds, Request, bucket
from kvstore.policy.lots import Lot
from kvstore.policy.returns import Returns

__all__ = ["ALL_NEW", "NEW_EDGES", "NO_GAP", "Learning"]

# Tokens of a prompt that are new, where it goes on from known blocks: buckets, and that of any other prompt.
NEW_EDGES = (128, 1024, 8192)
ALL_NEW = 1 + len(NEW_EDGES)
# Turns from here on are alike.
TURN_MAX = 5
# Of a chat: what is remembered of a turn's number. A prompt that is asked again goes on from itself.
TURNS_COUNTED = np.iinfo(np.int16).max
# Where a block was not used twice yet.
NO_GAP = -1.0


class Learning:
    """In a service with so many blocks."""

    def __init__(self, capacity: int, kinds_max: int) -> None:
        self.kinds = Kinds(kinds_max)
        self.returns = Returns(self.kinds)
        self.ghosts = Ghosts(capacity)

    def use(self, now: float, lot: Lot) -> tuple[NDArray[np.int16], NDArray[np.bool_]]:
        """Returns the kind of each block, and whether other chains use it."""
        found = _Found(now, lot, self.ghosts)
        turns, gaps_before = found.turns()
        counts, gaps = found.counts(turns), found.mean_gaps()
        requests = list(map(_request, lot.uses, found.known, turns, gaps_before))
        numbers = list(map(self.kinds.number, requests))
        branches = lot.most_behind(counts[CHILDREN], CHILDREN_MAX)
        places = self.kinds.places(counts[USES], gaps, branches, lot.depth, lot.distance)
        kinds = self.kinds.known(lot.spread(numbers), places)
        told = 0
        for chain, has_new in enumerate(lot.any_of(kinds == UNKNOWN)):
            own = slice(lot.starts[chain], lot.ends[chain])
            if has_new:
                kinds[own] = self.kinds.make(requests[chain], numbers[chain], places[own])
            if own.stop == kinds.size or self.returns.is_due:
                # All so far counts in what is fitted now.
                self._tell(now, lot, found, kinds, told, chain + 1)
                told = chain + 1
            self.returns.learn()
        ghost = found.ghost
        ghost["hash"], ghost["time"], ghost["kind"], ghost["counts"] = lot.hashes, now, kinds, counts.T
        ghost["turn"], ghost["length"], ghost["gap"] = lot.spread(turns), lot.spread(lot.sizes), gaps
        self.ghosts.put(found.places, ghost)
        return kinds, counts[SHARED].astype(np.bool_)

    def _tell(
        self, now: float, lot: Lot, found: "_Found", kinds: NDArray[np.int16], begin: int, end: int
    ) -> None:
        """Of these chains: what was read, and what may be read again."""
        blocks = slice(lot.starts[begin], lot.ends[end - 1])
        if any(found.known[begin:end]):
            self.returns.read(*found.read(blocks, kinds))
        ends = [each - blocks.start for each in lot.ends[begin:end]]
        self.returns.used(now, kinds[blocks], ends)


class _Found:
    """What is known of the blocks of a lot before they are used. By chain, how many `known` there are, up to
    the last."""

    def __init__(self, now: float, lot: Lot, ghosts: Ghosts) -> None:
        self._lot = lot
        self.places, self.ghost, is_known = ghosts.find(lot.hashes)
        self._ages = now - self.ghost["time"]
        self._kinds = self.ghost["kind"]
        self._again = None
        if not lot.is_one:
            self._again = again = find_again(self.places, lot.numbers())
            if again is not None:
                is_known[again.blocks] = lot.hashes[again.blocks] == lot.hashes[again.before]
                self._ages[again.blocks] = 0.0
        self._is_known = is_known
        self.known = lot.count_known(is_known)

    def read(self, blocks: slice, kinds: NDArray[np.int16]) -> tuple[NDArray[np.int16], NDArray[np.float64]]:
        """Of these blocks, which are read again: the kinds and the ages that they had. `kinds`: which they
        have now, in the whole lot."""
        before = self._kinds[blocks]
        if self._again is not None:
            places = self._again.before_any[blocks]
            before = np.where(places == NOTHING_BEFORE, before, kinds[places])
        is_known = self._is_known[blocks]
        return before[is_known], self._ages[blocks][is_known]

    def turns(self) -> tuple[list[int], list[float]]:
        """How many turns each request goes on from, and the seconds since the last. It goes on from an
        earlier one if that is told, or if it holds all of that, but for a last block that was not full; a
        lone block is anybody's."""
        turns: list[int] = []
        gaps: list[float] = []
        for use, start, known in zip(self._lot.uses, self._lot.starts, self.known, strict=True):
            turn, gap = use.session_turn, math.inf
            if known > 1:
                last = start + known - 1
                gap = float(self._ages[last])
                if not turn:
                    length, before = self._request_before(last, turns)
                    turn = before + 1 if known >= length - 1 else 0
            turns.append(min(turn, TURNS_COUNTED))
            gaps.append(gap)
        return turns, gaps

    def _request_before(self, block: int, turns: list[int]) -> tuple[int, int]:
        """Of the last that has used it: of how many blocks it was, and its turn."""
        if self._again is not None and (place := int(self._again.before_any[block])) != NOTHING_BEFORE:
            chain = bisect_right(self._lot.starts, place) - 1
            return self._lot.sizes[chain], turns[chain]
        record = self.ghost[block]
        return int(record["length"]), int(record["turn"])

    def counts(self, turns: list[int]) -> NDArray[np.int16]:
        """Uses and children of each block, and whether it is shared: int16[3, blocks].

        Children are the different blocks that have followed on it. Behind those that are known all are new.
        One whose place in the table another has taken is no new one.
        """
        lot = self._lot
        added = np.zeros((3, self._is_known.size), np.int16)
        added[USES] = self._is_known
        for start, end, known, turn in zip(lot.starts, lot.ends, self.known, turns, strict=True):
            added[CHILDREN, start + max(0, known - 1) : end - 1] = 1
            if not turn:
                added[SHARED, start : start + known] = 1
        counts: NDArray[np.int16] = self.ghost["counts"].T.astype(np.int16, order="C")
        counts *= added[USES]
        counts += added
        np.minimum(counts, COUNTED, out=counts)
        if (again := self._again) is not None:
            added = added[:, again.blocks]
            for part in again.rounds():
                before = counts[:, again.before[part]] * added[USES, part]
                counts[:, again.blocks[part]] = np.minimum(before + added[:, part], COUNTED)
        return counts

    def mean_gaps(self) -> NDArray[np.float64]:
        """The mean time between the uses of each block, after one more; the latest counts for half of it."""
        before, is_known = self.ghost["gap"].astype(np.float64), self._is_known
        is_first = before < 0
        gaps = before + self._ages
        gaps /= 2
        np.copyto(gaps, self._ages, where=is_first)
        np.copyto(gaps, NO_GAP, where=~is_known)
        if (again := self._again) is not None:
            # As they are kept. Nothing was between the use before and this one.
            kept, is_known = gaps.astype(np.float32), is_known[again.blocks]
            for part in again.rounds():
                halved = np.maximum(kept[again.before[part]], 0) / 2
                kept[again.blocks[part]] = np.where(is_known[part], halved, NO_GAP)
            gaps[again.blocks] = kept[again.blocks]
        return gaps


def _request(use: Use, known: int, turn: int, gap: float) -> Request:
    """Its buckets. `gap`: the seconds since the turn before."""
    return (
        min(turn, TURN_MAX),
        bucket(use.prompt_tokens, first=1000, factor=4),
        bucket(use.answer_tokens, first=32, factor=2),
        1 + bucket(gap, first=4, factor=2, levels=7) if turn else 0,
        _new(use, known),
    )


def _new(use: Use, known: int) -> int:
    """How many tokens of a prompt are new, after so many blocks that are known: a bucket. A lone block is
    anybody's."""
    if known < 2:
        return ALL_NEW
    return bisect_right(NEW_EDGES, use.prompt_tokens * (1 - known / use.rows.size))
