"""What is remembered of blocks by the hashes of their keys, whether they are cached or were evicted long ago.

One place a hash, its lowest bits; who comes later takes the place. So it is bounded and never searched, and
what is lost of it is lost at random and the oldest first. A place is one record, half a line of the
processor's cache: a block is somewhere in the table, and costs one miss and not one a column.
"""

import numpy as np
from numpy.typing import NDArray

from kvstore.core.ports import KeyHashes

__all__ = ["RECORD", "Ghosts"]

# Places, at the least; and for each frame of all tiers.
PLACES_MIN = 1 << 21
PLACES_PER_FRAME = 2
RECORD = np.dtype(
    [
        ("hash", np.uint64),
        # The last use, and the mean time between uses so far, in seconds.
        ("time", np.float64),
        ("gap", np.float32),
        # The request of the last use: of how many blocks its prompt was, and its turn.
        ("length", np.int32),
        ("turn", np.int16),
        # What kind the last use was of; how often the block was used before, and how many different blocks
        # have followed on it, as far as these are counted.
        ("kind", np.int16),
        ("uses", np.uint8),
        ("children", np.uint8),
        # Whether chains that don't go on from one another have used it.
        ("is_shared", np.bool_),
    ],
    align=True,
)
WORDS = RECORD.itemsize // 8


class Ghosts:
    def __init__(self, frames: int) -> None:
        places = PLACES_MIN
        while places < PLACES_PER_FRAME * frames:
            places *= 2
        self._mask = np.uint64(places - 1)
        # The same in two shapes: numpy takes rows of words, and puts lumps, much faster than it does records.
        table = np.zeros(places, RECORD)
        self._words = table.view(np.uint64).reshape(places, WORDS)
        self._lumps = table.view(np.dtype((np.void, RECORD.itemsize)))

    def find(self, hashes: KeyHashes) -> tuple[NDArray[np.intp], NDArray[np.void], NDArray[np.bool_]]:
        """Each block's place; a copy of the record there; and whether it is this block's."""
        places = (hashes & self._mask).astype(np.intp)
        records = self._words.take(places, axis=0).view(RECORD)[:, 0]
        return places, records, records["hash"] == hashes

    def put(self, places: NDArray[np.intp], records: NDArray[np.void]) -> None:
        self._lumps[places] = records.view(self._lumps.dtype)
