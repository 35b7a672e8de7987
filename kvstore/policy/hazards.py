"""What is expected of a kind by its features alone, whatever was seen of itself.

A hazard is the chance that a block which has come to a bin of ages unread is read in it. Each feature raises
or lowers it by a factor, whatever the age and the other features are (proportional hazards):

    m[k,c] = shape[k, stratum of c] · Π_f factor[bucket of c in f]

Shapes and factors are fitted in turns, each as the others leave it to be, to reads over those expected; what
is seen seldom is drawn to what is expected beforehand. That is made in steps of bounded work, and counts when
all of them are done.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from kvstore.policy.ages import BINS, EDGES, WIDTHS
from kvstore.policy.kinds import FEATURES, LEVELS, TURN, USES, Kinds

__all__ = ["FIRST", "Hazards"]

# Before anything is known a block is worth the less the longer it was not read: as for `Lru`.
FIRST = 0.3 * WIDTHS / (EDGES + WIDTHS + 1)
# Reads that what is expected beforehand counts for: the pooled shape, a stratum's own, a factor.
POOL_WEIGHT, SHAPE_WEIGHT, FACTOR_WEIGHT = 300.0, 900.0, 90.0
FACTOR_MIN, FACTOR_MAX = 0.02, 20.0
SWEEPS = 2
# In one step all kinds are looked at, of so many in the time that it takes to judge one.
KINDS_AN_EFFORT = 16
# Turn 0 or later, and used 0, 1 or more times before: the shapes over age that are told apart.
STRATA = 6


class Hazards:
    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds
        self._shapes = np.tile(FIRST[:, None], STRATA)
        self._factors = np.ones((FEATURES, LEVELS))

    def expected(self, kinds: slice) -> NDArray[np.float64]:
        """By bin and kind, float64[BINS, kinds]; may be above 1."""
        shapes = self._shapes[:, _strata(self._kinds.levels[:, kinds])]
        return shapes * _product(self._factors, self._kinds.levels[:, kinds])

    def fit(self, read: NDArray[np.float64], unread: NDArray[np.float64]) -> Iterator[int]:
        """To these, float64[BINS, kinds]: reads, and blocks that came to the bin unread. In steps; yields
        what each took, as that many kinds judged."""
        effort = 1 + read.shape[1] // KINDS_AN_EFFORT
        levels = self._kinds.levels[:, : read.shape[1]]
        strata = _strata(levels)
        factors, product = self._factors.copy(), _product(self._factors, levels)
        yield effort
        observed, seen = read.sum(axis=0), _by_stratum(read, strata)
        for _ in range(SWEEPS):
            yield effort
            shapes = _fit_shapes(seen, _by_stratum(unread * product, strata))
            yield effort
            at_one = (unread * shapes[:, strata]).sum(axis=0)
            for level, factor in zip(levels, factors, strict=True):
                yield effort
                reads = np.bincount(level, observed, minlength=LEVELS)
                due = np.bincount(level, at_one * product, minlength=LEVELS)
                before = factor.copy()
                factor *= (reads + FACTOR_WEIGHT) / (due + FACTOR_WEIGHT)
                np.clip(factor, FACTOR_MIN, FACTOR_MAX, out=factor)
                product *= (factor / before)[level]
        self._shapes, self._factors = shapes, factors


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


def _product(factors: NDArray[np.float64], levels: NDArray[np.intp]) -> NDArray[np.float64]:
    """Of each kind's factors."""
    product: NDArray[np.float64] = factors[0][levels[0]]
    for factor, level in zip(factors[1:], levels[1:], strict=True):
        product *= factor[level]
    return product
