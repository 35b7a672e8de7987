"""Frames that nobody holds, and frames by sequence: an allocator of equal pieces, and nothing else.

A frame has one holder. What is given back last is taken first, for it may still be in a cache.
Tests: tests/engine/kv/test_frames.py.
"""

from collections.abc import Sequence

__all__ = ["FrameTables"]


class FrameTables:
    def __init__(self, frame_count: int) -> None:
        self.frame_count = frame_count
        # From the end on the next ones.
        self._free = list(range(frame_count - 1, -1, -1))
        self._tables: dict[int, list[int]] = {}

    @property
    def free_count(self) -> int:
        return len(self._free)

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._tables

    def table(self, sequence: int) -> Sequence[int]:
        """The sequence's frames in token order; one that is not known has none."""
        return self._tables.get(sequence, ())

    def grow(self, sequence: int, block_count: int) -> bool:
        """Gives a sequence frames until it has so many; all that it lacks, or none: then false."""
        table = self._tables.setdefault(sequence, [])
        lacking = block_count - len(table)
        if lacking > len(self._free):
            return False
        for _ in range(lacking):
            table.append(self._free.pop())
        return True

    def free(self, sequence: int) -> None:
        """Takes all its frames back, and forgets it."""
        self._free += reversed(self._tables.pop(sequence, []))

    def hand_over(self, sequence: int, heir: int) -> None:
        """The heir, which has no frames yet, has them now, and the sequence has none."""
        if self._tables.get(heir):
            raise ValueError(f"sequence {heir} has frames of its own")
        self._tables[heir] = self._tables.pop(sequence, [])
