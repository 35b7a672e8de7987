"""What is expected of a kind by its features alone, whatever was seen of itself.

A hazard is the chance that a block which has come to a bin of ages unread is read in it. Each feature raises
or lowers it by a factor, whatever the other features are (proportional hazards), and by one more that depends
on the phase p of the age, early, middle or late: what comes back at once and what comes back at all are told
by different things.

    m[k,c] = shape[k, stratum of c] · Π_f factor[f, bucket of c] · bend[f, phase of k, bucket of c]

Shapes, factors and bends are fitted in turns, each as the others leave it to be, to reads over those
expected; what is seen seldom is drawn to what is expected beforehand, a bend to 1. That is made in steps of
bounded work, and counts when all of them are done.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from kvstore.policy.ages import BINS, EDGES, WIDTHS
from kvstore.policy.kinds import FEATURES, LEVELS, TURN, USES, Kinds

__all__ = ["FIRST", "Hazards"]

# Before anything is known, a block comes to the age a unread with a chance of (1 + a)^-0.2: so it is worth
# the less the longer it was not read, as for `Lru`.
FIRST = 1 - ((1 + EDGES) / (1 + EDGES + WIDTHS)) ** 0.2
# Reads that what is expected beforehand counts for: the pooled shape, a stratum's own, a factor, a bend.
POOL_WEIGHT, SHAPE_WEIGHT, FACTOR_WEIGHT, BEND_WEIGHT = 100.0, 400.0, 90.0, 1000.0
FACTOR_MIN, FACTOR_MAX = 0.02, 20.0
SWEEPS = 2
# In one step all kinds are looked at, of so many in the time that it takes to judge one.
KINDS_AN_EFFORT = 16
# Turn 0 or later, and used 0, 1 or more times before: the shapes over age that are told apart.
STRATA = 6
# The first bin of each phase, and the phase of each bin; in seconds, up to 4, up to 64, and later.
PHASE_STARTS = np.searchsorted(EDGES, (0.0, 4.0, 64.0))
PHASES = PHASE_STARTS.size
PHASE = np.searchsorted(PHASE_STARTS, np.arange(BINS), side="right") - 1


class Hazards:
    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds
        self._shapes = np.tile(FIRST[:, None], STRATA)
        self._factors = np.ones((FEATURES, LEVELS))
        self._bends = np.ones((FEATURES, PHASES, LEVELS))

    def expected(self, kinds: slice) -> NDArray[np.float64]:
        """By bin and kind, float64[BINS, kinds]; may be above 1."""
        levels = self._kinds.levels[:, kinds]
        return self._shapes[:, _strata(levels)] * _product(self._factors, self._bends, levels)[PHASE]

    def fit(self, read: NDArray[np.float64], unread: NDArray[np.float64]) -> Iterator[int]:
        """To these, float64[BINS, kinds]: reads, and blocks that came to the bin unread. In steps; yields
        what each took, as that many kinds judged."""
        effort = 1 + read.shape[1] // KINDS_AN_EFFORT
        levels = self._kinds.levels[:, : read.shape[1]]
        strata = _strata(levels)
        factors, bends = self._factors.copy(), self._bends.copy()
        product = _product(factors, bends, levels)
        yield effort
        observed, seen = np.add.reduceat(read, PHASE_STARTS), _by_stratum(read, strata)
        for _ in range(SWEEPS):
            yield effort
            shapes = _fit_shapes(seen, _by_stratum(unread * product[PHASE], strata))
            yield effort
            at_one = np.add.reduceat(unread * shapes[:, strata], PHASE_STARTS)
            for level, factor, bend in zip(levels, factors, bends, strict=True):
                yield effort
                before = factor * bend
                _fit_feature(factor, bend, _by_level(observed, level), _by_level(at_one * product, level))
                product *= (factor * bend / before)[:, level]
        self._shapes, self._factors, self._bends = shapes, factors, bends


def _fit_feature(
    factor: NDArray[np.float64],
    bend: NDArray[np.float64],
    reads: NDArray[np.float64],
    due: NDArray[np.float64],
) -> None:
    """In place. By phase and level: what was read, and what was expected to be."""
    without = due / (factor * bend)
    factor *= (reads.sum(axis=0) + FACTOR_WEIGHT) / (due.sum(axis=0) + FACTOR_WEIGHT)
    np.clip(factor, FACTOR_MIN, FACTOR_MAX, out=factor)
    np.divide(reads + BEND_WEIGHT, without * factor + BEND_WEIGHT, out=bend)
    np.clip(bend, FACTOR_MIN, FACTOR_MAX, out=bend)


def _fit_shapes(seen: NDArray[np.float64], due: NDArray[np.float64]) -> NDArray[np.float64]:
    """Given by bin and stratum: the pooled shape, and each stratum's own drawn to it."""
    pooled = (seen.sum(axis=1) + POOL_WEIGHT * FIRST) / (due.sum(axis=1) + POOL_WEIGHT)
    shapes: NDArray[np.float64] = (seen + SHAPE_WEIGHT * pooled[:, None]) / (due + SHAPE_WEIGHT)
    return shapes


def _by_stratum(counts: NDArray[np.float64], strata: NDArray[np.intp]) -> NDArray[np.float64]:
    """Summed over the kinds of each, float64[BINS, STRATA]."""
    return np.array([np.bincount(strata, counts[bin_], minlength=STRATA) for bin_ in range(BINS)])


def _strata(levels: NDArray[np.intp]) -> NDArray[np.intp]:
    strata: NDArray[np.intp] = np.minimum(levels[TURN], 1) * 3 + np.minimum(levels[USES], 2)
    return strata


def _by_level(counts: NDArray[np.float64], level: NDArray[np.intp]) -> NDArray[np.float64]:
    """Given by phase and kind, summed over the kinds of each level of a feature: float64[PHASES, LEVELS]."""
    return np.array([np.bincount(level, of_phase, minlength=LEVELS) for of_phase in counts])


def _product(
    factors: NDArray[np.float64], bends: NDArray[np.float64], levels: NDArray[np.intp]
) -> NDArray[np.float64]:
    """Of each kind's factors and bends: float64[PHASES, kinds]."""
    product = np.ones((PHASES, levels.shape[1]))
    for factor, bend, level in zip(factors, bends, levels, strict=True):
        product *= (factor * bend)[:, level]
    return product
