"""Blocks as rows of arrays: references, replicas, places in the prefix tree.

A block's place is a set of facts, one array each, never one enum of their product: per tier
a frame (or none), whether it is valid, and how many transfers pin it; and who refers to it.
All methods take arrays of rows and make a fixed number of numpy calls. What follows from a
change (which frames go back, what may be evicted) is decided in `memory.py`.

What costs here is not a row but a call, 0.3 to 1 us each, and whatever makes numpy convert:
so rows are machine words, as numpy wants its indices, each table has one dimension, and what is
added to a table has its type.
"""

import struct
from array import array
from collections.abc import Iterable
from collections.abc import Sequence as Many
from functools import partial

import numpy as np
from numpy.typing import NDArray

from kvstore.core.errors import check
from kvstore.core.types import CPU, DISK, GPU, BlockKey, Rows, Tier

__all__ = [
    "NO_FRAME",
    "NO_OWNER",
    "NO_ROW",
    "NO_ROWS",
    "NO_TABLE",
    "all_of",
    "any_of",
    "Blocks",
    "Rows",
    "as_table",
    "concat",
    "empty_table",
    "none_of",
    "without_none",
]

NO_ROW = -1
NO_FRAME = -1
# Of blocks that were found on disk and that no session has committed.
NO_OWNER = 0
NO_ROWS: Rows = np.empty(0, np.intp)

ONE, ONE_PIN = np.int32(1), np.int16(1)
# What tables are compared with, as arrays of no dimension: with a number it takes twice as long.
ROWLESS, FRAMELESS = np.array(NO_ROW, np.intp), np.array(NO_FRAME, np.int32)


def as_table(rows: "Many[int] | Rows") -> "array[int]":
    """A block table as sequences keep it: quick to grow, and numpy sees it without a copy."""
    # Packed first: an array takes four times as long over a list.
    packed = rows.tobytes() if isinstance(rows, np.ndarray) else struct.pack(f"{len(rows)}q", *rows)
    return array("q", packed)


# A table that is to grow: in a third of the time that `as_table` takes over nothing.
empty_table = partial(array, "q")
# Where there is nothing: never added to.
NO_TABLE = empty_table()


def without_none(rows: Rows) -> Rows:
    """Those that are rows: some blocks have no parent."""
    has = rows != ROWLESS
    return rows if all_of(has) else rows[has]


def concat(tables: "Iterable[array[int] | Rows]") -> Rows:
    """Many tables as one array: one copy, one numpy call, however many there are."""
    joined: bytes = b"".join(tables)  # type: ignore[arg-type]  # arrays of numpy are buffers
    return np.frombuffer(joined, np.intp)


def any_of(facts: NDArray[np.bool_]) -> bool:
    """`facts.any()`, in a seventh of the time: it looks for a byte."""
    return 1 in facts.tobytes()


def none_of(facts: NDArray[np.bool_]) -> bool:
    """`not facts.any()`, likewise."""
    return 1 not in facts.tobytes()


def all_of(facts: NDArray[np.bool_]) -> bool:
    """`facts.all()`, likewise."""
    return 0 not in facts.tobytes()


class Blocks:
    """The table of all logical blocks, `capacity` rows, and its free rows."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        # Raised each time the row is given back: who kept a row number can tell that it was.
        self.generation = np.zeros(capacity, np.uint32)

        self.taken = np.zeros(capacity, np.bool_)
        # Raised by whatever may let a block leave a tier that could not leave it (`lacking.py`).
        self.changes = 0

        # References of sequences to the block on the GPU; and how many of these were given up, but their
        # fence has not passed, or their swap-out still runs.
        self.refs = np.zeros(capacity, np.int32)
        self.limbo = np.zeros(capacity, np.int32)
        # References of swapped sequences: a copy must stay in the CPU or disk tier.
        self.claims = np.zeros(capacity, np.int32)
        # Since the start: references on the GPU that began, and that ended; the same of claims. Between two
        # looks no more blocks have come into use than references began (`pressure.py`).
        self.refs_begun = self.refs_ended = 0
        self.claims_begun = self.claims_ended = 0

        # Whether the work that writes it has completed, so that a swap-out may copy it.
        self.offered = np.zeros(capacity, np.bool_)

        # Replicas by tier. A frame that is not valid is being filled, or about to be.
        self.frame = tuple(np.full(capacity, NO_FRAME, np.int32) for _ in Tier)
        self.valid = tuple(np.zeros(capacity, np.bool_) for _ in Tier)
        # Transfers that read or fill this replica: it may not move or go.
        self.pins = tuple(np.zeros(capacity, np.int16) for _ in Tier)
        # By tier, since the start: frames that transfers have filled.
        self.frames_filled = [0 for _ in Tier]

        # Whether the block can be found by its key. Its parent then can too.
        self.indexed = np.zeros(capacity, np.bool_)
        self.parent = np.full(capacity, NO_ROW, np.intp)
        # Its number in its chain, from 0.
        self.depth = np.zeros(capacity, np.int32)
        # Indexed children; and of these, how many have a frame in each tier.
        self.children = np.zeros(capacity, np.int32)
        self.children_in = tuple(np.zeros(capacity, np.int32) for _ in Tier)
        self.domain = np.zeros(capacity, np.int64)
        self.writer = np.zeros(capacity, np.uint32)
        # Also of a block that has left the index, as long as it lies on disk under it.
        self.key: list[BlockKey] = [BlockKey(b"")] * capacity

        # Whether a second sequence has used it.
        self.reused = np.zeros(capacity, np.bool_)
        # Of indexed blocks. The session, or lone sequence, that published the block; whether one outside
        # that session has used it.
        self.owner = np.zeros(capacity, np.int64)
        self.shared = np.zeros(capacity, np.bool_)
        # Whether a copy is wanted on disk as soon as one is in the CPU tier.
        self.to_disk = np.zeros(capacity, np.bool_)
        # Whether a session has it, and it is asked when it is about to leave the CPU tier if it is wanted
        # there (`judging.py`).
        self.undecided = np.zeros(capacity, np.bool_)
        # Whether it waits in a tier for its turn to be copied one further down.
        self.queued = tuple(np.zeros(capacity, np.bool_) for _ in Tier)
        # Whether it was forgotten: nobody finds it any more, and it is never published again.
        self.barred = np.zeros(capacity, np.bool_)
        self.has_barred = False
        # Whether it goes as soon as nobody uses it and nothing moves it.
        self.unwanted = np.zeros(capacity, np.bool_)

        self._free = np.arange(capacity - 1, -1, -1, dtype=np.int32)
        self.free_count = capacity
        self._seen = np.zeros(capacity, np.int32)

    def take_rows(self, count: int) -> Rows:
        """New rows, all facts at their defaults. There are always enough: each holds a frame."""
        check(count <= self.free_count, "out of block rows")
        self.free_count -= count
        rows: Rows = self._free[self.free_count : self.free_count + count].astype(np.intp)
        self.taken[rows] = True
        return rows

    def give_rows(self, rows: Rows) -> None:
        """Gives rows back that nothing refers to any more, that can't be found and have no frame."""
        self.generation[rows] += np.uint32(1)
        self.taken[rows] = False
        self.offered[rows] = False
        self.reused[rows] = False
        if self.has_barred:
            self.barred[rows] = False
        self._free[self.free_count : self.free_count + rows.size] = rows
        self.free_count += rows.size

    def distinct(self, rows: Rows) -> Rows:
        """The rows in their order, each where it stands first."""
        order = np.arange(rows.size, dtype=np.int32)
        # Where a row repeats the last assignment holds: from the end, so that it is the first.
        self._seen[rows[::-1]] = order[::-1]
        first = self._seen[rows] == order
        return rows if all_of(first) else rows[first]

    def bar(self, rows: Rows) -> None:
        """These are forgotten."""
        self.barred[rows] = True
        self.has_barred |= rows.size > 0

    def name_owner(self, rows: Rows, owner: int) -> None:
        """A session has these indexed blocks in its chain. What nobody had before is its own from now on."""
        owned = self.owner[rows]
        self.owner[rows[owned == NO_OWNER]] = owner
        self.shared[rows[(owned != NO_OWNER) & (owned != owner)]] = True

    # Each of these takes rows that may repeat; a plain `table[rows] += 1` would count them once.

    def hold(self, rows: Rows) -> None:
        self.refs_begun += rows.size
        np.add.at(self.refs, rows, ONE)

    def release(self, rows: Rows) -> None:
        self.refs_ended += rows.size
        self.changes += 1
        np.subtract.at(self.refs, rows, ONE)

    def unhold(self, rows: Rows) -> None:
        """As if these had not been held just now."""
        self.refs_begun -= rows.size
        np.add.at(self.refs, rows, -ONE)

    def give_up(self, rows: Rows) -> None:
        """From held to limbo."""
        np.add.at(self.limbo, rows, ONE)

    def take_back(self, rows: Rows) -> None:
        """From limbo to held."""
        np.subtract.at(self.limbo, rows, ONE)

    def leave_limbo(self, rows: Rows) -> None:
        """And released, as in `release`."""
        self.refs_ended += rows.size
        self.changes += 1
        np.subtract.at(self.limbo, rows, ONE)
        np.subtract.at(self.refs, rows, ONE)

    def claim(self, rows: Rows) -> None:
        self.claims_begun += rows.size
        np.add.at(self.claims, rows, ONE)

    def unclaim(self, rows: Rows) -> None:
        self.claims_ended += rows.size
        self.changes += 1
        np.subtract.at(self.claims, rows, ONE)

    def pin(self, tier: Tier, rows: Rows) -> None:
        np.add.at(self.pins[tier], rows, ONE_PIN)

    def unpin(self, tier: Tier, rows: Rows) -> None:
        self.changes += 1
        np.subtract.at(self.pins[tier], rows, ONE_PIN)

    def hold_first(self, rows: Rows) -> None:
        """New blocks get their first reference."""
        self.refs_begun += rows.size
        self.refs[rows] = 1

    def unqueue(self, tier: Tier, rows: "Rows | list[int]") -> None:
        """These don't wait in the tier any more for their copy down."""
        self.changes += 1
        self.queued[tier][rows] = False

    def unwish(self, rows: Rows) -> None:
        """Of these no copy is wanted on disk any more."""
        self.changes += 1
        self.to_disk[rows] = False
        self.undecided[rows] = False

    def fill(self, tier: Tier, rows: Rows) -> None:
        """A transfer has brought the content of these into their frames."""
        self.frames_filled[tier] += rows.size
        self.changes += 1
        self.valid[tier][rows] = True

    def has_frame(self, tier: Tier, rows: Rows) -> NDArray[np.bool_]:
        has: NDArray[np.bool_] = self.frame[tier][rows] != FRAMELESS
        return has

    def unfilled(self, rows: Rows) -> NDArray[np.bool_]:
        """Whether a GPU frame is there whose content has still to come."""
        unfilled: NDArray[np.bool_] = self.has_frame(GPU, rows) & ~self.valid[GPU][rows]
        return unfilled

    def kept_below(self, rows: Rows) -> NDArray[np.bool_]:
        """Whether there is a valid copy in the CPU or disk tier."""
        kept: NDArray[np.bool_] = self.valid[CPU][rows] | self.valid[DISK][rows]
        return kept

    def in_use(self, rows: "Rows | slice") -> NDArray[np.bool_]:
        """Whether an engine may still read or write the GPU frame."""
        used: NDArray[np.bool_] = self.refs[rows].astype(np.bool_)
        return used

    def held(self, rows: Rows) -> NDArray[np.bool_]:
        """Whether a sequence refers to the block that has not given it up."""
        held: NDArray[np.bool_] = self.refs[rows] > self.limbo[rows]
        return held
