"""Chains that are used at one moment, as one array of blocks: what is known of each is looked for and put
down once for all of them.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from kvstore.core.ports import KeyHashes, Use
from kvstore.core.types import Rows

__all__ = ["Lot", "lots"]

# Blocks that are looked at together, so that what is made for it has a bound; of one chain, all are.
BLOCKS_MAX = 1 << 13


def lots(uses: Sequence[Use]) -> Iterator["Lot"]:
    """All that name blocks, in their order."""
    lot: list[Use] = []
    size = 0
    for use in uses:
        if lot and size + use.rows.size > BLOCKS_MAX:
            yield Lot(lot)
            lot, size = [], 0
        if use.rows.size:
            lot.append(use)
            size += use.rows.size
    if lot:
        yield Lot(lot)


class Lot:
    """Each chain head first. By chain: its size, where it begins, and where it ends. By block: its depth in
    the chain, and its distance from the tail. Most lots are of one chain, and that costs nothing more."""

    def __init__(self, uses: list[Use]) -> None:
        self.uses = uses
        self.is_one = len(uses) == 1
        self.rows: Rows = uses[0].rows
        self.hashes: KeyHashes = uses[0].hashes
        if self.is_one:
            size = self.rows.size
            self.sizes, self.starts, self.ends = [size], [0], [size]
            self.depth = np.arange(size)
            self.distance = self.depth[::-1]
            return
        self.rows = np.concatenate([use.rows for use in uses])
        self.hashes = np.concatenate([use.hashes for use in uses])
        self.sizes = [use.rows.size for use in uses]
        self.ends = list(accumulate(self.sizes))
        self.starts = [0, *self.ends[:-1]]
        place = np.arange(self.rows.size)
        self.depth = place - self.spread(self.starts)
        self.distance = self.spread(self.ends) - 1 - place

    def spread(self, by_chain: list[int]) -> "NDArray[np.intp] | int":
        """To the blocks of each chain."""
        return by_chain[0] if self.is_one else np.repeat(np.array(by_chain, np.intp), self.sizes)

    def numbers(self) -> NDArray[np.intp]:
        """By block, which chain it is of."""
        return np.repeat(np.arange(len(self.uses)), self.sizes)

    def count_known(self, is_known: NDArray[np.bool_]) -> list[int]:
        """Of each chain, the blocks up to the last that is known."""
        if self.is_one:
            return [1 + is_known.tobytes().rfind(1)]
        counts: list[int] = np.maximum.reduceat((self.depth + 1) * is_known, self.starts).tolist()
        return counts

    def any_of(self, facts: NDArray[np.bool_]) -> list[bool]:
        """By chain, whether it is so of any of its blocks."""
        if self.is_one:
            return [1 in facts.tobytes()]
        any_: list[bool] = np.logical_or.reduceat(facts, self.starts).tolist()
        return any_

    def most_behind(self, values: NDArray[np.int16], most: int) -> NDArray[np.int16] | NDArray[np.intp]:
        """By block, the greatest of its and those behind it in its chain; `most`, at the most."""
        values = np.minimum(values, most)
        if self.is_one:
            of_one: NDArray[np.int16] = np.maximum.accumulate(values[::-1])[::-1]
            return of_one
        # From behind, each chain stands higher than all that were before it.
        floors = -(most + 1) * self.numbers()
        behind: NDArray[np.intp] = np.maximum.accumulate((values + floors)[::-1])[::-1]
        return behind - floors
