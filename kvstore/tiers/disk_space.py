"""The room under the cap: slots taken and given back, segments made when slots run out, blocks counted.

A slot is given back only when the transaction that freed it is durable: else a power loss could bring back
the entry of a block whose bytes another has taken. (It would be found out when it is read, yet be lost.)
"""

import logging
import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvstore.core.types import NamespaceId
from kvstore.tiers.disk_cap import blocks_max
from kvstore.tiers.disk_format import BlockEntry, Geometry, namespace_of, segment_name
from kvstore.tiers.disk_table import Removed
from kvstore.tiers.files import Files
from kvstore.tiers.segments import Segments, obstructed_in
from kvstore.tiers.slots import Slots

__all__ = ["Space"]

log = logging.getLogger(__name__)


class Space:
    """For any thread."""

    def __init__(self, folder: Path, files: Files, geometry: Geometry, slot_count: int) -> None:
        self.geometry = geometry
        self.files = files
        self._folder = folder
        self.segments = Segments(folder, files, geometry, slot_count)
        self._slots = Slots(slot_count, geometry.segment_slots)
        self._blocks: Counter[NamespaceId] = Counter()
        # Of transactions that failed: perhaps they are durable all the same.
        self._doubtful: list[int] = []
        self._broken: set[int] = set()
        # Slots that there might be, had nothing else the name of their segment.
        self._obstructed_count = 0
        # Those that dead entries name for as long as this lives.
        self._barred: set[int] = set()
        # The lowest last.
        self._unmade: list[int] = []
        self._lock = threading.Lock()
        self._growing = threading.Lock()

    @property
    def slot_count(self) -> int:
        return self._slots.capacity

    @property
    def room(self) -> int:
        """Slots that can be filled."""
        return self.slot_count - self._obstructed_count - len(self._barred)

    @property
    def capacity(self) -> int:
        """Blocks that there may be at once."""
        return blocks_max(self.room)

    @property
    def block_count(self) -> int:
        return self._blocks.total()

    @property
    def free_count(self) -> int:
        """Slots that may be taken, those of segments that are not made yet included."""
        unmade = sum(self._length(segment) - len(self._barred_in(segment)) for segment in self._unmade)
        return self._slots.free_count + unmade

    def blocks_of(self, namespaces: Iterable[NamespaceId]) -> int:
        return sum(self._blocks[namespace] for namespace in namespaces)

    def open(self, segments: Iterable[int]) -> None:
        """Those that are there. What can't be opened is left alone: it may be readable at the next start."""
        self._broken = {segment for segment in segments if not self.segments.open(segment)}
        for segment in obstructed_in(self._folder):
            log.warning("%s/%s is no file of kvstore's: left alone", self._folder, segment_name(segment))
            self._broken.add(segment)
            self._obstructed_count += self._length(segment)

    def load(self, slots: NDArray[np.intp], namespaces: NDArray[np.uint32], barred: NDArray[np.intp]) -> None:
        """The blocks that are there at the start, and slots that are never to be filled: nothing else is
        taken. After `open`."""
        ids, counts = np.unique(namespaces, return_counts=True)
        self._blocks.update(dict(zip(map(NamespaceId, ids.tolist()), counts.tolist(), strict=True)))
        self._barred = set(barred[barred < self.slot_count].tolist())
        of_segment = slots // self.geometry.segment_slots
        for segment in range(-(-self.slot_count // self.geometry.segment_slots)):
            if segment in self.segments:
                used = slots[of_segment == segment]
                self._add(segment, used[used < self.slot_count])
            elif segment not in self._broken:
                self._unmade.insert(0, segment)

    def slot_of(self, entry: BlockEntry) -> int:
        return entry.segment * self.geometry.segment_slots + entry.slot

    def take(self, count: int, run: int) -> list[int]:
        """Ascending. Only as many as are free in segments that are there: `grow` makes more."""
        with self._lock:
            count = min(count, self._slots.free_count)
            return self._slots.take(count, run) if count else []

    def give(self, slots: Iterable[int]) -> None:
        with self._lock:
            self._slots.give(slot for slot in slots if self._is_of_use(slot))

    def grow(self) -> None:
        """Makes the lowest segment that isn't there. OSError where the disk has no room for it, and where one
        is being made: that may be late, and to make it twice would give away slots that are taken."""
        if not self._growing.acquire(blocking=False):
            raise OSError("a segment is still being made")
        try:
            if not self._unmade:
                raise OSError("full: all segments are made")
            segment = self._unmade[-1]
            self.segments.make(segment)
            with self._lock:
                self._unmade.pop()
                self._add(segment, np.empty(0, np.intp))
        finally:
            self._growing.release()

    def committed(self, added: Iterable[bytes], removed: Iterable[Removed]) -> None:
        """A transaction is durable, and so all before it are settled, those that failed too."""
        with self._lock:
            self._blocks.update(map(namespace_of, added))
            self._blocks.subtract(namespace_of(name) for name, _ in removed)
            settled, self._doubtful = self._doubtful, []
        self.give([*settled, *(self.slot_of(entry) for _, entry in removed)])

    def doubt(self, slots: Iterable[int]) -> None:
        """The transaction that was to fill these has failed."""
        with self._lock:
            self._doubtful += slots

    def close(self) -> None:
        self.segments.close()

    def _is_of_use(self, slot: int) -> bool:
        """Nothing is written any more behind the cap, nor into a segment that can't be opened."""
        is_there = slot < self.slot_count and slot // self.geometry.segment_slots in self.segments
        return is_there and slot not in self._barred

    def _add(self, segment: int, used: NDArray[np.intp]) -> None:
        first = segment * self.geometry.segment_slots
        barred = np.array(self._barred_in(segment), np.intp)
        self._slots.add(first, np.concatenate([used, barred]), first + self._length(segment))

    def _barred_in(self, segment: int) -> list[int]:
        return [slot for slot in self._barred if slot // self.geometry.segment_slots == segment]

    def _length(self, segment: int) -> int:
        return self.segments.ends_at(segment) - segment * self.geometry.segment_slots
