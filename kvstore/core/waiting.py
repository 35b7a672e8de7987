"""Which sequence waits for which row to move. It waits for rows, not for transfers: whoever moves a row, all
who wait for it are served.
"""

from kvstore.core.sequences import Sequence
from kvstore.core.types import CPU, GPU, Rows, Tier

__all__ = ["Waiting"]


class Waiting:
    """By tier and row."""

    def __init__(self) -> None:
        self._sequences: dict[tuple[Tier, int], list[Sequence]] = {}

    def wait(self, sequence: Sequence, tier: Tier, rows: list[int]) -> None:
        """For these, and no others."""
        sequence.waits = len(rows)
        for row in rows:
            self._sequences.setdefault((tier, row), []).append(sequence)

    def stop(self, sequence: Sequence) -> None:
        """The sequence is freed or needs its rows no more; what moves them goes on."""
        if not sequence.waits:
            return
        for tier in (GPU, CPU):
            for row in sequence.rows:
                waiting = self._sequences.get((tier, row), [])
                if sequence in waiting:
                    waiting.remove(sequence)
                    if not waiting:
                        del self._sequences[tier, row]
        sequence.waits = 0

    def who(self, tier: Tier, rows: Rows) -> list[Sequence]:
        """Those who wait for any of these, once each."""
        waiting = [sequence for row in rows.tolist() for sequence in self._sequences.get((tier, row), ())]
        return list(dict.fromkeys(waiting))

    def rows(self) -> dict[Sequence, list[tuple[Tier, int]]]:
        """Who waits for what."""
        waiting: dict[Sequence, list[tuple[Tier, int]]] = {}
        for place, sequences in self._sequences.items():
            for sequence in sequences:
                waiting.setdefault(sequence, []).append(place)
        return waiting

    def serve(self, tier: Tier, rows: Rows, *, failed: bool) -> list[Sequence]:
        """These rows have moved, or will not. Returns who waits for nothing any more."""
        finished: list[Sequence] = []
        for row in rows.tolist():
            for sequence in self._sequences.pop((tier, row), []):
                sequence.waits -= 1
                if failed:
                    place = sequence.rows.index(row)
                    first = sequence.first_failed
                    sequence.first_failed = place if first is None else min(place, first)
                if not sequence.waits:
                    finished.append(sequence)
        return finished
