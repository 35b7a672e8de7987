"""Ages at which a block may come back, cut into bins; and which blocks have come to one."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["BINS", "EDGES", "RUNS_AT_ONCE", "RUNS_MAX", "WIDTHS", "Runs", "bins_of"]

# Ages where bins begin, in seconds: up to an hour; and how long each is taken to be, the last one being open.
EDGES = np.append(0.0, 2.5 ** np.arange(10))
WIDTHS = np.append(np.diff(EDGES), EDGES[-1] / 2)
BINS = EDGES.size
# Runs of blocks of one kind that wait to come to their next age; and that are told of together.
RUNS_MAX = 1 << 16
RUNS_AT_ONCE = 1 << 13


def bins_of(ages: NDArray[np.float64]) -> NDArray[np.intp]:
    bins: NDArray[np.intp] = np.searchsorted(EDGES, ages, side="right") - 1
    return np.maximum(bins, 0)


class Runs:
    """Neighbouring blocks of one kind that were used together, in a ring: the oldest are overwritten, and of
    them nothing more is told."""

    def __init__(self) -> None:
        self._time = np.zeros(RUNS_MAX)
        self._kind = np.zeros(RUNS_MAX, np.int16)
        self._size = np.zeros(RUNS_MAX)
        # How many there have been.
        self.count = 0
        # Of each bin, how many have come to its age.
        self._passed = [0] * BINS

    def add(self, time: float, kinds: NDArray[np.int16]) -> None:
        """Of a chain that is used now; times don't go back."""
        is_last = np.ones(kinds.size, np.bool_)
        np.not_equal(kinds[1:], kinds[:-1], out=is_last[:-1])
        last = np.flatnonzero(is_last)
        size = last + 1
        size[1:] -= size[:-1].copy()
        places = (self.count + np.arange(last.size)) % RUNS_MAX
        self._time[places], self._kind[places], self._size[places] = time, kinds[last], size
        self.count += last.size

    def come_of_age(
        self, bin_: int, time: float, count: int
    ) -> tuple[NDArray[np.int16], NDArray[np.float64]]:
        """Kinds and sizes of the next of the first `count` runs that have come to this bin by then:
        RUNS_AT_ONCE at the most, and not past the end of the ring. None: there are no more."""
        begin = max(self._passed[bin_], self.count - RUNS_MAX)
        start, waits = begin % RUNS_MAX, max(0, count - begin)
        waiting = slice(start, min(start + min(waits, RUNS_AT_ONCE), RUNS_MAX))
        size = int(np.searchsorted(self._time[waiting], time - EDGES[bin_], side="right"))
        self._passed[bin_] = begin + size
        come = slice(start, start + size)
        return self._kind[come], self._size[come]
