"""Kinds of uses: what is known of a request and of the place of a block in it, in buckets.

A kind is one combination of buckets that has occurred. How soon blocks of a kind are read again is learned in
`returns.py`; here is only which of them are told apart. There is a bound on requests and on kinds. What comes
when it is near is told apart by less. A feature that is left out then has the level ANY, whose part in what
is expected is learned as any other level's is: so it is the mean over all that are taken together.
"""

import numpy as np
from numpy.typing import NDArray

from kvstore.core.errors import check

__all__ = [
    "ANY",
    "BUCKETS",
    "CHILDREN_MAX",
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
GAP_EDGES = np.array([0.0, 1.0, 4.0, 16.0, 64.0, 256.0, 1024.0])
CHILDREN_MAX = 2
DETAILS = 8 * (1 + CHILDREN_MAX)
PLACES = 6 * 4 * 3 * DETAILS
# Behind them those without gap and children.
COARSE_PLACES = PLACES // DETAILS
ROW = PLACES + COARSE_PLACES
# By uses, depth and distance, up to the last edge, and from there on all alike: what they add to the number.
USES_PLACES = np.searchsorted(USES_EDGES, np.arange(USES_EDGES[-1] + 1), side="right") * (12 * DETAILS)
DEPTH_PLACES = np.searchsorted(DEPTH_EDGES, np.arange(DEPTH_EDGES[-1] + 1), side="right") * (3 * DETAILS)
DISTANCE_PLACES = np.searchsorted(DISTANCE_EDGES, np.arange(DISTANCE_EDGES[-1] + 1), side="right") * DETAILS
# Requests that are told apart, each with the kinds that come of it; of more only the turn: for these the last
# few numbers are kept.
REQUESTS_MAX = 2048

# The buckets of a request's five features.
Request = tuple[int, int, int, int, int]


class Kinds:
    def __init__(self, kinds_max: int = KINDS_MAX) -> None:
        """`kinds_max`: KINDS_MAX or fewer, and more than COARSE_MAX."""
        check(COARSE_MAX < kinds_max <= KINDS_MAX, "there is no room for kinds that are told apart by less")
        self._fine_end = kinds_max - COARSE_MAX
        self.count = 1
        # By feature and kind: the bucket.
        self.levels = np.zeros((FEATURES, KINDS_MAX), np.intp)
        # Of those that are told apart, the number.
        self._requests: dict[Request, int] = {}
        # By request and place in it: the kind, or UNKNOWN as long as there was none.
        self._kind = np.zeros((REQUESTS_MAX, ROW), np.int16)

    def number(self, request: Request) -> int:
        """Of a request, as far as it is told apart from others."""
        number = self._requests.get(request)
        if number is None:
            if len(self._requests) >= REQUESTS_MAX - BUCKETS:
                return self._coarse_number(request)
            number = self._requests[request] = len(self._requests)
        return number

    def places(
        self,
        uses: NDArray[np.int16],
        gaps: NDArray[np.float64],
        branches: NDArray[np.int16] | NDArray[np.intp],
        depths: NDArray[np.intp],
        distances: NDArray[np.intp],
    ) -> NDArray[np.intp]:
        """Of blocks, in their requests: used so often before, at so many seconds from one another (below
        zero: not twice yet), continued in so many ways, up to CHILDREN_MAX; so deep in their chains, and so
        far from the tails."""
        places = USES_PLACES.take(uses, mode="clip")
        places += DEPTH_PLACES.take(depths, mode="clip")
        places += DISTANCE_PLACES.take(distances, mode="clip")
        by_gap = GAP_EDGES.searchsorted(gaps, side="right")
        by_gap *= 1 + CHILDREN_MAX
        places += by_gap
        places += branches
        return places

    def known(self, number: "NDArray[np.intp] | int", places: NDArray[np.intp]) -> NDArray[np.int16]:
        """Of blocks of a request, or each of its own: UNKNOWN where there was none like it."""
        kinds: NDArray[np.int16] = self._kind.ravel()[places + number * ROW]
        return kinds

    def make(self, request: Request, number: int, places: NDArray[np.intp]) -> NDArray[np.int16]:
        """The same of the blocks of one request, where those that there were not are made."""
        row = self._kind[number]
        new = places[row[places] == UNKNOWN]
        for place in sorted(set(new.tolist())):
            row[place] = self._make(request, number, place)
        kinds: NDArray[np.int16] = row[places]
        return kinds

    def _make(self, request: Request, number: int, place: int) -> int:
        details = divmod(place % DETAILS, 1 + CHILDREN_MAX)
        of_place = place // DETAILS
        if number >= REQUESTS_MAX - BUCKETS:
            request = _coarse(request)
        if self.count >= self._fine_end:
            request, place, details = _coarse(request), PLACES + of_place, (ANY, ANY)
            number = self._coarse_number(request)
            known = int(self._kind[number, place])
            if known != UNKNOWN:
                return known
        kind, self.count = self.count, self.count + 1
        self._kind[number, place] = kind
        of_place, distance = divmod(of_place, 3)
        uses, depth = divmod(of_place, 4)
        self.levels[:, kind] = (*request, uses, depth, distance, *details)
        return kind

    def _coarse_number(self, request: Request) -> int:
        """The last numbers are kept for these."""
        return REQUESTS_MAX - BUCKETS + request[TURN]


def _coarse(request: Request) -> Request:
    return (request[TURN], ANY, ANY, ANY, ANY)


def bucket(value: float, first: float, factor: float, levels: int = BUCKETS) -> int:
    """0 below `first`, and one more each time that the value is `factor` times as large."""
    level = 0
    while value >= first and level < levels - 1:
        value, level = value / factor, level + 1
    return level
