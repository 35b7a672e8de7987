"""What is remembered of blocks by the hashes of their keys, whether they are cached or were evicted long ago.

One place a hash, its lowest bits; who comes later takes the place. So it is bounded and never searched, all
that is asked of it costs a numpy call a column, and what is lost of it is lost at random and the oldest
first.
"""

import numpy as np
from numpy.typing import NDArray

from kvstore.core.ports import KeyHashes

__all__ = ["Ghosts"]

# Places, at the least; and for each frame of all tiers.
PLACES_MIN = 1 << 19
PLACES_PER_FRAME = 2


class Ghosts:
    """Columns by place; a caller reads and writes them at the places that `find` and `put` name."""

    def __init__(self, frames: int) -> None:
        places = PLACES_MIN
        while places < PLACES_PER_FRAME * frames:
            places *= 2
        self._mask = np.uint64(places - 1)
        self._hash = np.zeros(places, np.uint64)
        # The last use: when, in seconds; what kind the block was of; how often it was used before.
        self.time = np.zeros(places)
        self.kind = np.zeros(places, np.int16)
        self.uses = np.zeros(places, np.int32)
        # The request of the last use: its turn, and of how many blocks its prompt was.
        self.turn = np.zeros(places, np.int16)
        self.length = np.zeros(places, np.int32)
        # Whether chains that don't go on from one another have used it.
        self.is_shared = np.zeros(places, np.bool_)

    def find(self, hashes: KeyHashes) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """Each block's place, and whether it is known there."""
        places = (hashes & self._mask).astype(np.intp)
        return places, self._hash[places] == hashes

    def put(self, places: NDArray[np.intp], hashes: KeyHashes) -> None:
        self._hash[places] = hashes
