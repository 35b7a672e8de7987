"""Which slots may be handed out. Neighbours go together, so that several small blocks are moved as one I/O.

A slot that isn't free is somebody's: of a block, of a write under way, of a transaction that isn't durable
yet, of an I/O that never returned. Whose, its owner knows, and gives it back when that is over.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from kvstore.core.errors import check

__all__ = ["Slots"]


class Slots:
    """For one thread at a time. At first no slot is there: each segment adds its own."""

    def __init__(self, capacity: int, segment_slots: int) -> None:
        self._segment_slots = segment_slots
        self._is_free = np.zeros(capacity, np.bool_)
        # The longest run of free slots in each segment, and all of them.
        self._longest = np.zeros(-(-capacity // segment_slots), np.intp)
        self._free = np.zeros_like(self._longest)
        self.free_count = 0
        # Of segments that are there.
        self.made_count = 0

    @property
    def capacity(self) -> int:
        return self._is_free.size

    def add(self, first: int, used: NDArray[np.intp], end: int) -> None:
        """A segment's slots, from `first` up to `end`; those in `used` are not free."""
        check(0 <= first < end <= self.capacity, f"slots {first} to {end} of {self.capacity}")
        self._is_free[first:end] = True
        self._is_free[used] = False
        self.free_count += int(np.count_nonzero(self._is_free[first:end]))
        self.made_count += end - first
        self._measure({first // self._segment_slots})

    def take(self, count: int, run: int) -> list[int]:
        """So many free slots, in runs of `run` where there are such, the lowest first; of shorter ones in few
        segments, for each is synced by itself. Ascending."""
        check(0 < count <= self.free_count, f"{count} slots of {self.free_count}")
        taken: list[int] = []
        while len(taken) < count:
            left = count - len(taken)
            whole = np.flatnonzero(self._longest >= min(run, left))
            # Of those that hold as much of what is left, one that is touched anyway.
            share = 2 * np.minimum(self._free, left)
            touched = np.array(taken, np.intp) // self._segment_slots
            share[touched] += share[touched] > 0
            segment = whole[0] if whole.size else share.argmax()
            taken += self._take_in(int(segment), left, min(run, left))
        return sorted(taken)

    def give(self, slots: Iterable[int]) -> None:
        """Back, or for the first time: slots that nobody may touch any more."""
        back = np.fromiter(slots, np.intp)
        check(not self._is_free[back].any(), "a slot given back that is free")
        self._is_free[back] = True
        self.free_count += back.size
        self._measure(set((back // self._segment_slots).tolist()))

    def _take_in(self, segment: int, count: int, run: int) -> list[int]:
        """The runs that are long enough; where none is, all, the longest first."""
        starts, lengths = self._runs(segment)
        order = np.argsort(-lengths, kind="stable") if lengths.max() < run else np.flatnonzero(lengths >= run)
        taken: list[int] = []
        for start, length in zip(starts[order].tolist(), lengths[order].tolist(), strict=True):
            taken += range(start, start + min(length, count - len(taken)))
            if len(taken) == count:
                break
        self._is_free[taken] = False
        self.free_count -= len(taken)
        self._measure({segment})
        return taken

    def _runs(self, segment: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Where the segment's runs of free slots begin, and how long they are."""
        first = segment * self._segment_slots
        edges = np.diff(
            self._is_free[first : first + self._segment_slots].astype(np.int8), prepend=0, append=0
        )
        starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
        return first + starts, ends - starts

    def _measure(self, segments: Iterable[int]) -> None:
        for segment in segments:
            lengths = self._runs(segment)[1]
            self._longest[segment], self._free[segment] = lengths.max(initial=0), lengths.sum()
