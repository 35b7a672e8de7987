"""Kinds of uses: what is known of a request and of the place of a block in it, in buckets.

A kind is one combination of buckets that has occurred. How soon blocks of a kind are read again is learned in
`returns.py`; here is only which of them are told apart.
"""

import numpy as np
from numpy.typing import NDArray

__all__ = ["FEATURES", "KINDS_MAX", "LEVELS", "TURN", "UNKNOWN", "USES", "Kinds", "bucket"]

# Of the request: its turn, tokens of prompt and of answer, time since the turn before, how much of it is new.
# Of the block: how often it was used before, its depth in the chain and its distance from the tail.
FEATURES = 8
TURN, USES = 0, 5
# Buckets of a feature, at the most.
LEVELS = 8
# Combinations that are told apart; of one that comes later its request is taken for one of its turn alone.
KINDS_MAX = 8192
# The kind of blocks that nobody has told of.
UNKNOWN = 0
# Buckets of a block's four features, in one number.
USES_EDGES = np.array([1, 2, 3, 6, 20])
DEPTH_EDGES = np.array([1, 4, 16])
DISTANCE_EDGES = np.array([1, 3])
PLACES = 6 * 4 * 3
# By uses, up to the last edge, and from there on all alike: what they add to the number.
USES_PLACES = np.searchsorted(USES_EDGES, np.arange(USES_EDGES[-1] + 1), side="right") * 12
# Requests that are told apart: PLACES kinds may come of each.
REQUESTS_MAX = 4096

# The buckets of a request's five features.
Request = tuple[int, int, int, int, int]


class Kinds:
    def __init__(self) -> None:
        self.count = 1
        # By feature and kind: the bucket.
        self.levels = np.zeros((FEATURES, KINDS_MAX), np.intp)
        self._requests: dict[Request, int] = {}
        # By request and place in it: the kind, or UNKNOWN as long as there was none.
        self._kind = np.zeros((REQUESTS_MAX, PLACES), np.int16)
        self._reckon_depths(256)

    def of(self, request: Request, uses: NDArray[np.int32]) -> NDArray[np.int16]:
        """Of the blocks of a request, head first, used so often before."""
        places = USES_PLACES.take(uses, mode="clip")
        if places.size > self._by_depth.size:
            self._reckon_depths(2 * places.size)
        places += self._by_depth[: places.size]
        places += self._by_distance[-places.size :]
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
        self._by_depth = np.searchsorted(DEPTH_EDGES, depth, side="right") * 3
        self._by_distance = np.searchsorted(DISTANCE_EDGES, depth[::-1], side="right")

    def _number(self, request: Request) -> int:
        number = self._requests.get(request)
        if number is not None:
            return number
        if len(self._requests) == REQUESTS_MAX or self.count >= KINDS_MAX - PLACES * LEVELS:
            request = (request[0], 0, 0, 0, 0)
        return self._requests.setdefault(request, min(len(self._requests), REQUESTS_MAX - 1))

    def _make(self, request: Request, place: int) -> int:
        if self.count == KINDS_MAX:
            return UNKNOWN
        kind, self.count = self.count, self.count + 1
        place, distance = divmod(place, 3)
        uses, depth = divmod(place, 4)
        self.levels[:, kind] = (*request, uses, depth, distance)
        return kind


def bucket(value: float, first: float, factor: float, levels: int = LEVELS) -> int:
    """0 below `first`, and one more each time that the value is `factor` times as large."""
    level = 0
    while value >= first and level < levels - 1:
        value, level = value / factor, level + 1
    return level
