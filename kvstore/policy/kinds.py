"""Kinds of uses: what is known of a request and of the place of a block in it, in buckets.

A kind is one combination of buckets that has occurred. How soon blocks of a kind are read again is learned in
`returns.py`; here is only which of them are told apart. There is a bound on requests and on kinds. What comes
when it is near is told apart by less. A feature that is left out then has the level ANY, whose part in what
is expected is learned as any other level's is: so it is the mean over all that are taken together.
"""

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "ANY",
    "BUCKETS",
    "COARSE_MAX",
    "FEATURES",
    "KINDS_MAX",
    "LEVELS",
    "REQUESTS_MAX",
    "TURN",
    "UNKNOWN",
    "USES",
    "Kinds",
    "bucket",
]

# Of the request: its turn, tokens of prompt and of answer, time since the turn before, tokens that are new.
# Of the block: how often it was used before, its depth in the chain and its distance from the tail, the mean
# time between its uses, and in how many ways chains have gone on from it or from one that hangs on it.
FEATURES = 10
TURN, USES = 0, 5
# Buckets of a feature, at the most; behind them the level of what is not told apart by it.
BUCKETS = 8
ANY, LEVELS = BUCKETS, BUCKETS + 1
# Combinations that are told apart. Of what comes when few are left, only the turn, and the block's uses and
# place, count: for these there is room.
KINDS_MAX = 8192
COARSE_MAX = 6 * 6 * 4 * 3
# The kind of blocks that nobody has told of.
UNKNOWN = 0
# Buckets of a block's five features, in one number; of the gap, the first is for there was none.
USES_EDGES = np.array([1, 2, 3, 6, 20])
DEPTH_EDGES = np.array([1, 4, 16])
DISTANCE_EDGES = np.array([1, 3])
GAP_EDGES = np.array([0, 1, 4, 16, 64, 256, 1024])
CHILDREN_MAX = 2
DETAILS = 8 * (1 + CHILDREN_MAX)
PLACES = 6 * 4 * 3 * DETAILS
# Behind them those without gap and children.
COARSE_PLACES = PLACES // DETAILS
# By uses, up to the last edge, and from there on all alike: what they add to the number.
USES_PLACES = np.searchsorted(USES_EDGES, np.arange(USES_EDGES[-1] + 1), side="right") * (12 * DETAILS)
# Requests that are told apart, each with the kinds that come of it; of more only the turn: for these the last
# few numbers are kept.
REQUESTS_MAX = 2048

# The buckets of a request's five features.
Request = tuple[int, int, int, int, int]


class Kinds:
    def __init__(self) -> None:
        self.count = 1
        # By feature and kind: the bucket.
        self.levels = np.zeros((FEATURES, KINDS_MAX), np.intp)
        self._requests: dict[Request, int] = {}
        # By request and place in it: the kind, or UNKNOWN as long as there was none.
        self._kind = np.zeros((REQUESTS_MAX, PLACES + COARSE_PLACES), np.int16)
        self._reckon_depths(256)

    def of(
        self,
        request: Request,
        uses: NDArray[np.uint8],
        gaps: NDArray[np.float64],
        children: NDArray[np.uint8],
    ) -> NDArray[np.int16]:
        """Of the blocks of a request, head first: used so often before, at so many seconds from one another
        (below zero: not twice yet), and continued in so many ways."""
        places = USES_PLACES.take(uses, mode="clip")
        if places.size > self._by_depth.size:
            self._reckon_depths(2 * places.size)
        places += self._by_depth[: places.size]
        places += self._by_distance[-places.size :]
        places += np.searchsorted(GAP_EDGES, gaps, side="right") * (1 + CHILDREN_MAX)
        places += np.minimum(children, CHILDREN_MAX)
        request = self._told_apart(request)
        row = self._kind[self._number(request)]
        new = places[row[places] == UNKNOWN]
        if new.size:
            for place in sorted(set(new.tolist())):
                row[place] = self._make(request, place)
        kinds: NDArray[np.int16] = row[places]
        return kinds

    def _reckon_depths(self, size: int) -> None:
        """What a block's depth in its chain, and its distance from the tail, add to the number of its place:
        of chains up to this size, the distances from behind."""
        depth = np.arange(size)
        self._by_depth = np.searchsorted(DEPTH_EDGES, depth, side="right") * (3 * DETAILS)
        self._by_distance = np.searchsorted(DISTANCE_EDGES, depth[::-1], side="right") * DETAILS

    def _told_apart(self, request: Request) -> Request:
        """The request, as far as it is told apart from others."""
        is_full = len(self._requests) >= REQUESTS_MAX - BUCKETS
        return _coarse(request) if is_full and request not in self._requests else request

    def _number(self, request: Request) -> int:
        return self._requests.setdefault(request, len(self._requests))

    def _make(self, request: Request, place: int) -> int:
        details = divmod(place % DETAILS, 1 + CHILDREN_MAX)
        of_place = place // DETAILS
        if self.count >= KINDS_MAX - COARSE_MAX:
            request, place, details = _coarse(request), PLACES + of_place, (ANY, ANY)
            known = int(self._kind[self._number(request), place])
            if known != UNKNOWN:
                return known
        kind, self.count = self.count, self.count + 1
        self._kind[self._number(request), place] = kind
        of_place, distance = divmod(of_place, 3)
        uses, depth = divmod(of_place, 4)
        self.levels[:, kind] = (*request, uses, depth, distance, *details)
        return kind


def _coarse(request: Request) -> Request:
    return (request[TURN], ANY, ANY, ANY, ANY)


def bucket(value: float, first: float, factor: float, levels: int = BUCKETS) -> int:
    """0 below `first`, and one more each time that the value is `factor` times as large."""
    level = 0
    while value >= first and level < levels - 1:
        value, level = value / factor, level + 1
    return level
