"""How soon blocks of each kind are read again, learned as they are, and what that makes them worth.

Of each bin k of ages (`ages.py`) and each kind c are counted

    R[k,c]    reads at that age          E[k,c]    blocks that reached that age unread

so R/E is the hazard: the chance that a block which has come to the bin unread is read in it. Few kinds are
seen often enough for that, so a hazard is drawn to what features alone would make it (`hazards.py`):

    h[k,c] = (R[k,c] + W·m[k,c]) / (E[k,c] + W)

What a block of age a is worth is the most reads for each second of a frame that keeping it, for as long as is
best, can be expected to bring (the index of Gittins: with one price for frames, to keep what has the most is
optimal):

    worth(c, a) = max over T of  P(read within T) / E[time until it is read or T has passed]

All is fitted anew now and then, a little of it with each use, so nobody waits for the whole.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from kvstore.policy.ages import BINS, EDGES, WIDTHS, Runs, bins_of
from kvstore.policy.hazards import Hazards
from kvstore.policy.kinds import KINDS_MAX, Kinds

__all__ = ["Returns"]

HAZARD_MAX = 0.99
# Reads that what is expected beforehand counts for in a kind's hazard.
KIND_WEIGHT = 3000.0
# Uses from one fit to the next, while the service is new, and later: what there is to learn from comes as a
# share of what there was. With many kinds, which come only slowly to be many, a fit is more work and brings
# less.
PERIOD_FIRST, PERIOD, USES_A_PERIOD, KINDS_A_USE = 8, 128, 32, 64
# What is left of a count after PERIOD uses.
KEPT = 0.999
# Effort is reckoned in kinds that are judged: of one step of a fit, and of what one use does of it (a step
# more may be begun). So a fit takes a few uses as long as there are few kinds, a hundred with all of them.
STEP_EFFORT, USE_EFFORT = 256, 512
AGE_EFFORT = 128


class Returns:
    """Of all kinds. Columns are kinds: float64[BINS, KINDS_MAX]."""

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds
        self._runs = Runs()
        self._read = np.zeros((BINS, KINDS_MAX))
        self._reached = np.zeros((BINS, KINDS_MAX))
        # Blocks that left the count at that age, as it was told that they won't be read again.
        self._ended = np.zeros((BINS, KINDS_MAX))
        # R and E as the last fit found them.
        self._seen = np.zeros((BINS, KINDS_MAX))
        self._unread = np.zeros((BINS, KINDS_MAX))
        self._hazards = Hazards(kinds)
        # The worth where the bin begins; behind the last bin, half of its own. And the chance of any read.
        self._worth = np.zeros((BINS + 1, KINDS_MAX))
        self._chance = np.zeros((BINS, KINDS_MAX))
        self.hazard = np.zeros((BINS, KINDS_MAX))
        # Kinds whose worth was reckoned so far: what comes newly is, when one is asked for.
        self.judged = 0
        self._judge_new()
        # All uses, those since the last fit was begun, and what is left to do of it.
        self._now, self._all_uses, self._uses = 0.0, 0, 0
        self._steps: Iterator[int] = iter(())

    def read(self, kinds: NDArray[np.int16], ages: NDArray[np.float64]) -> None:
        """These were read again, so long after they were used as blocks of these kinds."""
        np.add.at(self._read.ravel(), _flat(bins_of(ages), kinds), 1.0)

    def ended(self, kinds: NDArray[np.int16], ages: NDArray[np.float64]) -> None:
        """It was told that these won't be read again: they say nothing of those of which it was not."""
        np.add.at(self._ended.ravel(), _flat(bins_of(ages), kinds), 1.0)

    def used(self, time: float, kinds: NDArray[np.int16]) -> None:
        """Blocks of a chain are used, and may be read again."""
        self._now = time
        self._runs.add(time, kinds)
        if self._kinds.count - self.judged >= STEP_EFFORT:
            self._judge_new()
        self._all_uses += 1
        self._uses += 1
        if self._uses >= self._period():
            self._steps, self._uses = self._fit(self._steps, self._uses), 0
        left = USE_EFFORT
        while left > 0 and (effort := next(self._steps, 0)):
            left -= effort

    def worth(self, kinds: NDArray[np.int16], ages: NDArray[np.float64]) -> NDArray[np.float64]:
        """Reads for each second of a frame; between two edges in proportion."""
        self._judge_new()
        bins = bins_of(ages)
        share = np.minimum((ages - EDGES[bins]) / WIDTHS[bins], 1.0)
        flat, table = _flat(bins, kinds), self._worth.ravel()
        worth: NDArray[np.float64] = table[flat] * (1 - share) + table[flat + KINDS_MAX] * share
        return worth

    def chance(self, kinds: NDArray[np.int16], ages: NDArray[np.float64]) -> NDArray[np.float64]:
        """That blocks which have come to these ages unread are read at all."""
        self._judge_new()
        chance: NDArray[np.float64] = self._chance.ravel()[_flat(bins_of(ages), kinds)]
        return chance

    def _period(self) -> int:
        """Uses from the last fit to the next."""
        by_uses = min(max(PERIOD_FIRST, self._all_uses // USES_A_PERIOD), PERIOD)
        return max(by_uses, self._kinds.count // KINDS_A_USE)

    def _fit(self, earlier: Iterator[int], uses: int) -> Iterator[int]:
        """After so many uses. In steps, behind those of an earlier fit that are left; yields what each took.
        Hazards count as soon as they are judged."""
        yield from earlier
        now = self._now, self._runs.count
        for bin_ in range(BINS):
            while (come := self._runs.come_of_age(bin_, *now))[0].size:
                self._reached[bin_] += np.bincount(*come, minlength=KINDS_MAX)
                yield AGE_EFFORT
        count = self._kinds.count
        parts = [slice(begin, begin + STEP_EFFORT) for begin in range(0, count, STEP_EFFORT)]
        for kinds in parts:
            self._take_stock(kinds, KEPT ** (uses / PERIOD))
            yield STEP_EFFORT
        yield from self._hazards.fit(self._seen[:, :count], self._unread[:, :count])
        for kinds in parts:
            self._judge(kinds)
            yield STEP_EFFORT

    def _take_stock(self, kinds: slice, kept: float) -> None:
        """R and E of these kinds; E are those old enough for a bin, times the share that the bins before have
        left of theirs (Kaplan and Meier). What was read early may not be old enough for the late bins, so it
        can't just be taken off. And the counts fade."""
        for counts in (self._read, self._reached, self._ended):
            counts[:, kinds] *= kept
        read, reached, ended = self._read[:, kinds], self._reached[:, kinds], self._ended[:, kinds]
        gone, left = read + ended, np.ones(read.shape[1])
        for bin_ in range(BINS):
            came = reached[bin_] * left
            left *= 1 - np.minimum(gone[bin_] / np.maximum(came, 1e-9), 1.0)
            self._unread[bin_, kinds] = np.maximum(came - ended[bin_], 0.0)
        self._seen[:, kinds] = read

    def _judge_new(self) -> None:
        if self.judged < self._kinds.count:
            self._judge(slice(self.judged, self._kinds.count))

    def _judge(self, kinds: slice) -> None:
        """What these are worth, by all that the last fit knew."""
        expected = KIND_WEIGHT * np.minimum(self._hazards.expected(kinds), HAZARD_MAX)
        hazard = (self._seen[:, kinds] + expected) / (self._unread[:, kinds] + KIND_WEIGHT)
        np.minimum(hazard, HAZARD_MAX, out=hazard)
        self.hazard[:, kinds] = hazard
        self._worth[:, kinds] = _gittins(hazard)
        self._chance[:, kinds] = 1 - np.cumprod(1 - hazard[::-1], axis=0)[::-1]
        self.judged = max(self.judged, min(kinds.stop, self._kinds.count))


def _flat(bins: NDArray[np.intp], kinds: NDArray[np.int16]) -> NDArray[np.intp]:
    """Places in a table of columns by kind, as it lies in memory."""
    flat: NDArray[np.intp] = bins * KINDS_MAX + kinds
    return flat


def _gittins(hazard: NDArray[np.float64]) -> NDArray[np.float64]:
    """By bin, and one row more, and kind: the best ratio of reads to time from there on.

    Over all bins at which to stop, from the last bin to start in to the first: what was expected from the
    next bin on comes to pass if this one leaves the block unread."""
    worth = np.empty((BINS + 1, hazard.shape[1]))
    unread = 1 - hazard
    # Of each bin by itself: reads, and time in a frame, as if what is read in it were so in the middle of it.
    each = np.array([hazard, WIDTHS[:, None] * (1 - hazard / 2)])
    until = np.zeros_like(each)
    for start in range(BINS - 1, -1, -1):
        from_here = until[:, start:]
        from_here *= unread[start]
        from_here += each[:, start, None]
        np.divide(from_here[0], from_here[1]).max(axis=0, out=worth[start])
    np.multiply(worth[BINS - 1], 0.5, out=worth[BINS])
    return worth
