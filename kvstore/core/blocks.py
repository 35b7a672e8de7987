"""Blocks as rows of arrays: references, replicas, places in the prefix tree.

A block's place is a set of facts, one array each, never one enum of their product: per tier
a frame (or none), whether it is valid, and how many transfers pin it; and who refers to it.
All methods take arrays of rows and make a fixed number of numpy calls. What follows from a
change (which frames go back, what may be evicted) is decided in `memory.py`.
"""

from array import array
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from kvstore.core.errors import check
from kvstore.core.types import Tier

__all__ = ["NO_FRAME", "NO_ROW", "Blocks", "Rows", "concat"]

Rows = NDArray[np.int32]
NO_ROW = -1
NO_FRAME = -1


def concat(tables: "Iterable[array[int] | Rows]") -> Rows:
    """Many tables as one array: one copy, one numpy call, however many there are."""
    joined: bytes = b"".join(tables)  # type: ignore[arg-type]  # arrays of numpy are buffers
    return np.frombuffer(joined, dtype=np.int32)


class Blocks:
    """The table of all logical blocks, `capacity` rows, and its free rows."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        # Raised each time the row is given back: who kept a row number can tell that it was.
        self.generation = np.zeros(capacity, np.uint32)

        self.taken = np.zeros(capacity, np.bool_)

        # References of sequences that need the block on the GPU.
        self.live = np.zeros(capacity, np.int32)
        # References given up whose fence has not passed, or whose swap-out still runs.
        self.limbo = np.zeros(capacity, np.int32)
        # References of swapped sequences: a copy must stay in the CPU or disk tier.
        self.claims = np.zeros(capacity, np.int32)

        # Whether the work that writes it has completed, so that a swap-out may copy it.
        self.offered = np.zeros(capacity, np.bool_)

        # Replicas by tier. A frame that is not valid is being filled, or about to be.
        self.frame = np.full((len(Tier), capacity), NO_FRAME, np.int32)
        self.valid = np.zeros((len(Tier), capacity), np.bool_)
        # Transfers that read or fill this replica: it may not move or go.
        self.pins = np.zeros((len(Tier), capacity), np.int16)

        # Whether the block can be found by its key. Its parent then can too.
        self.indexed = np.zeros(capacity, np.bool_)
        self.parent = np.full(capacity, NO_ROW, np.int32)
        # Its number in its chain, from 0.
        self.depth = np.zeros(capacity, np.int32)
        # Indexed children; and of these, how many have a frame in each tier.
        self.children = np.zeros(capacity, np.int32)
        self.children_in = np.zeros((len(Tier), capacity), np.int32)
        self.domain = np.zeros(capacity, np.int64)
        self.writer = np.zeros(capacity, np.int64)
        self.key: list[bytes] = [b""] * capacity

        # The session, or lone sequence, that published the block; whether a second sequence
        # has used it; whether one outside that session has.
        self.owner = np.zeros(capacity, np.int64)
        self.reused = np.zeros(capacity, np.bool_)
        self.shared = np.zeros(capacity, np.bool_)
        # Whether a copy is wanted on disk as soon as one is in the CPU tier.
        self.to_disk = np.zeros(capacity, np.bool_)
        # Whether it waits in a tier for its turn to be copied one further down.
        self.queued = np.zeros((len(Tier), capacity), np.bool_)
        # Whether it goes as soon as nobody uses it and nothing moves it.
        self.unwanted = np.zeros(capacity, np.bool_)

        self._free = np.arange(capacity - 1, -1, -1, dtype=np.int32)
        self.free_count = capacity

    def take_rows(self, count: int) -> Rows:
        """New rows, all facts at their defaults. There are always enough: each holds a frame."""
        check(count <= self.free_count, f"out of block rows: {count} wanted, {self.free_count} free")
        self.free_count -= count
        rows = self._free[self.free_count : self.free_count + count].copy()
        self.taken[rows] = True
        return rows

    def give_rows(self, rows: Rows) -> None:
        """Gives rows back that nothing refers to any more and that have no frame."""
        self.generation[rows] += 1
        self.taken[rows] = False
        for table in (self.to_disk, self.reused, self.shared, self.offered, self.unwanted):
            table[rows] = False
        self.queued[:, rows] = False
        self.owner[rows] = 0
        for row in rows.tolist():
            self.key[row] = b""
        self._free[self.free_count : self.free_count + rows.size] = rows
        self.free_count += rows.size

    # Each of these takes rows that may repeat; a plain `table[rows] += 1` would count them once.

    def hold(self, rows: Rows) -> None:
        np.add.at(self.live, rows, 1)

    def release(self, rows: Rows) -> None:
        np.subtract.at(self.live, rows, 1)

    def give_up(self, rows: Rows) -> None:
        """From held to limbo."""
        np.subtract.at(self.live, rows, 1)
        np.add.at(self.limbo, rows, 1)

    def take_back(self, rows: Rows) -> None:
        """From limbo to held."""
        np.subtract.at(self.limbo, rows, 1)
        np.add.at(self.live, rows, 1)

    def leave_limbo(self, rows: Rows) -> None:
        np.subtract.at(self.limbo, rows, 1)

    def claim(self, rows: Rows) -> None:
        np.add.at(self.claims, rows, 1)

    def unclaim(self, rows: Rows) -> None:
        np.subtract.at(self.claims, rows, 1)

    def unfilled(self, rows: Rows) -> NDArray[np.bool_]:
        """Whether a GPU frame is there whose content has still to come."""
        has_frame = self.frame[Tier.GPU, rows] != NO_FRAME
        unfilled: NDArray[np.bool_] = has_frame & ~self.valid[Tier.GPU, rows]
        return unfilled

    def in_use(self, rows: "Rows | slice") -> NDArray[np.bool_]:
        """Whether an engine may still read or write the GPU frame."""
        return (self.live[rows] > 0) | (self.limbo[rows] > 0)
