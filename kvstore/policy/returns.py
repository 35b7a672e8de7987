"""How soon blocks of each kind are read again, learned as they are, and what that makes them worth.

The ages at which a block may come back are cut into bins. Of each kind c and bin k are counted

    R[c,k]    reads at that age          E[c,k]    blocks that reached that age unread

so R/E is the hazard: the chance that a block which has come to the bin unread is read in it. Few kinds are
seen often enough for that, so a hazard is drawn to what features alone would make it, each of them raising or
lowering it by a factor, whatever the age and the others are (proportional hazards):

    h[c,k] = (R[c,k] + W·m[c,k]) / (E[c,k] + W)
    m[c,k] = shape[stratum(c), k] · Π_f factor[f, bucket of c]

What a block of age a is worth is the most reads for each second of a frame that keeping it, for as long as is
best, can be expected to bring (the index of Gittins: with one price for frames, to keep what has the most is
optimal):

    worth(c, a) = max over T of  P(read within T) / E[time until it is read or T has passed]
"""

import numpy as np
from numpy.typing import NDArray

from kvstore.policy.kinds import FEATURES, KINDS_MAX, LEVELS, Kinds

__all__ = ["Returns"]

# Ages where bins begin, in seconds; and how long each is taken to be, the last one being open.
EDGES = np.array([0.0, 1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0])
WIDTHS = np.append(np.diff(EDGES), EDGES[-1] / 2)
BINS = EDGES.size
# Before anything is known a block is worth the less the longer it was not read: as for `Lru`.
FIRST = 0.3 * WIDTHS / (EDGES + WIDTHS + 1)
HAZARD_MAX = 0.99
# Reads that what is expected beforehand counts for: the pooled shape, a stratum's own, a factor, a kind's
# hazard.
POOL_WEIGHT, SHAPE_WEIGHT, FACTOR_WEIGHT, KIND_WEIGHT = 300.0, 900.0, 90.0, 3000.0
FACTOR_MIN, FACTOR_MAX = 0.02, 20.0
SWEEPS = 2
# Uses between two times that all is fitted anew, and what is left of a count after each.
PERIOD = 128
KEPT = 0.999
# Runs of blocks of one kind that wait to come to their next age.
RUNS_MAX = 1 << 16
# Turn 0 or later, and used 0, 1 or more times before: the shapes over age that are told apart.
STRATA = 6


class Returns:
    """Of all kinds."""

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds
        self._read = np.zeros((KINDS_MAX, BINS))
        self._reached = np.zeros((KINDS_MAX, BINS))
        # Blocks that left the count at that age, as it was told that they won't be read again.
        self._ended = np.zeros((KINDS_MAX, BINS))
        # Runs of blocks as they were used, in a ring; of each bin, how many have come to its age.
        self._run_time = np.zeros(RUNS_MAX)
        self._run_kind = np.zeros(RUNS_MAX, np.int16)
        self._run_size = np.zeros(RUNS_MAX)
        self._run_count = 0
        self._passed = [0] * BINS
        self._uses = 0
        self._factors = np.ones(FEATURES * LEVELS)
        self._shapes = np.tile(FIRST, (STRATA, 1))
        # By kind and bin: the hazard, and the worth where the bin begins; behind the last bin, half of its
        # own.
        self.hazard = np.tile(FIRST, (KINDS_MAX, 1))
        self._worth = np.zeros((KINDS_MAX, BINS + 1))
        self._judged = 0
        self._judge(0, 1)

    def read(self, kinds: NDArray[np.int16], ages: NDArray[np.float64]) -> None:
        """These were read again, so long after they were used as blocks of these kinds."""
        np.add.at(self._read, (kinds, _bins(ages)), 1.0)

    def ended(self, kinds: NDArray[np.int16], ages: NDArray[np.float64]) -> None:
        """It was told that these won't be read again: they say nothing of those of which it was not."""
        np.add.at(self._ended, (kinds, _bins(ages)), 1.0)

    def used(self, time: float, kinds: NDArray[np.int16]) -> None:
        """Blocks of a chain are used, and may be read again."""
        starts = np.concatenate([[0], np.flatnonzero(np.diff(kinds)) + 1])
        places = (self._run_count + np.arange(starts.size)) % RUNS_MAX
        self._run_time[places] = time
        self._run_kind[places] = kinds[starts]
        self._run_size[places] = np.diff(np.append(starts, kinds.size))
        self._run_count += starts.size
        self._uses += 1
        if self._kinds.count > self._judged:
            self._judge(self._judged, self._kinds.count)
        if self._uses % PERIOD == 0:
            self._grow_older(time)
            self._fit()
            self._judge(0, self._kinds.count)

    def worth(self, kinds: NDArray[np.int16], ages: NDArray[np.float64]) -> NDArray[np.float64]:
        """Reads for each second of a frame; between two edges in proportion."""
        bins = _bins(ages)
        share = np.minimum((ages - EDGES[bins]) / WIDTHS[bins], 1.0)
        flat = kinds.astype(np.intp) * (BINS + 1) + bins
        table = self._worth.ravel()
        worth: NDArray[np.float64] = table[flat] * (1 - share) + table[flat + 1] * share
        return worth

    def chance(self, kinds: NDArray[np.int16], ages: NDArray[np.float64]) -> NDArray[np.float64]:
        """That blocks which have come to these ages unread are read at all."""
        ahead = np.arange(BINS) >= _bins(ages)[:, None]
        unread: NDArray[np.float64] = np.prod(np.where(ahead, 1 - self.hazard[kinds], 1.0), axis=1)
        return 1 - unread

    def _grow_older(self, time: float) -> None:
        """Counts the runs that have come to each bin's age; of those that were overwritten nothing more."""
        oldest = max(0, self._run_count - RUNS_MAX)
        for bin_, edge in enumerate(EDGES.tolist()):
            begin = max(self._passed[bin_], oldest)
            places = np.arange(begin, self._run_count) % RUNS_MAX
            places = places[: np.searchsorted(self._run_time[places], time - edge, side="right")]
            self._passed[bin_] = begin + places.size
            self._reached[:, bin_] += np.bincount(
                self._run_kind[places], self._run_size[places], minlength=KINDS_MAX
            )

    def _fit(self) -> None:
        """Shapes and factors in turns, each as the others leave it to be; and the counts fade."""
        count = self._kinds.count
        self._read[:count] *= KEPT
        self._reached[:count] *= KEPT
        self._ended[:count] *= KEPT
        kinds = slice(0, count)
        read, unread = self._read[kinds], self._unread(kinds)
        levels, strata = self._flat_levels(kinds), self._strata(kinds)
        product = self._factors[levels].prod(axis=1)
        for _ in range(SWEEPS):
            self._fit_shapes(read, unread * product[:, None], strata)
            expected_at_one = (unread * self._shapes[strata]).sum(axis=1)
            observed = read.sum(axis=1)
            for feature in range(FEATURES):
                level = levels[:, feature]
                size = FEATURES * LEVELS
                seen = np.bincount(level, observed, minlength=size)
                expected = np.bincount(level, expected_at_one * product, minlength=size)
                change = (seen + FACTOR_WEIGHT) / (expected + FACTOR_WEIGHT)
                factors = np.clip(self._factors * change, FACTOR_MIN, FACTOR_MAX)
                mine = slice(feature * LEVELS, (feature + 1) * LEVELS)
                self._factors[mine] = factors[mine]
                product = self._factors[levels].prod(axis=1)

    def _fit_shapes(
        self, read: NDArray[np.float64], expected: NDArray[np.float64], strata: NDArray[np.intp]
    ) -> None:
        pooled = (read.sum(axis=0) + POOL_WEIGHT * FIRST) / (expected.sum(axis=0) + POOL_WEIGHT)
        for stratum in range(STRATA):
            mine = strata == stratum
            seen, due = read[mine].sum(axis=0), expected[mine].sum(axis=0)
            self._shapes[stratum] = (seen + SHAPE_WEIGHT * pooled) / (due + SHAPE_WEIGHT)

    def _judge(self, begin: int, end: int) -> None:
        """What kinds `begin` to `end` are worth, by all that is known."""
        kinds = slice(begin, end)
        levels, strata = self._flat_levels(kinds), self._strata(kinds)
        model = self._shapes[strata] * self._factors[levels].prod(axis=1)[:, None]
        seen = self._read[kinds] + KIND_WEIGHT * np.minimum(model, HAZARD_MAX)
        hazard = np.minimum(seen / (self._unread(kinds) + KIND_WEIGHT), HAZARD_MAX)
        self.hazard[kinds] = hazard
        self._worth[kinds] = _gittins(hazard)
        self._judged = max(self._judged, end)

    def _unread(self, kinds: slice) -> NDArray[np.float64]:
        """E, of these kinds: those old enough for a bin, times the share that the bins before
        have left of theirs (Kaplan and Meier). What was read early may not be old enough for the late bins,
        so it can't just be taken off."""
        reached, ended = self._reached[kinds], self._ended[kinds]
        gone = self._read[kinds] + ended
        unread = np.empty_like(reached)
        left = np.ones(reached.shape[0])
        for bin_ in range(BINS):
            unread[:, bin_] = reached[:, bin_] * left
            left *= 1 - np.minimum(gone[:, bin_] / np.maximum(unread[:, bin_], 1e-9), 1.0)
        return np.maximum(unread - ended, 0.0)

    def _flat_levels(self, kinds: slice) -> NDArray[np.intp]:
        flat: NDArray[np.intp] = self._kinds.levels[kinds] + np.arange(FEATURES) * LEVELS
        return flat

    def _strata(self, kinds: slice) -> NDArray[np.intp]:
        levels = self._kinds.levels[kinds]
        strata: NDArray[np.intp] = np.minimum(levels[:, 0], 1) * 3 + np.minimum(levels[:, 5], 2)
        return strata


def _bins(ages: NDArray[np.float64]) -> NDArray[np.intp]:
    bins: NDArray[np.intp] = np.searchsorted(EDGES, ages, side="right") - 1
    return np.maximum(bins, 0)


def _gittins(hazard: NDArray[np.float64]) -> NDArray[np.float64]:
    """By kind and bin, and one column more: the best ratio of reads to time from there on."""
    worth = np.zeros((hazard.shape[0], BINS + 1))
    for start in range(BINS):
        unread = np.ones(hazard.shape[0])
        reads, time = np.zeros_like(unread), np.zeros_like(unread)
        for bin_ in range(start, BINS):
            read = unread * hazard[:, bin_]
            reads += read
            # What is read in a bin is so in the middle of it.
            time += WIDTHS[bin_] * (unread - read / 2)
            unread -= read
            np.maximum(worth[:, start], reads / time, out=worth[:, start])
    worth[:, BINS] = worth[:, BINS - 1] / 2
    return worth
