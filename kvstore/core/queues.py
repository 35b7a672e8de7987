"""Rows that wait for a link, where tenants share: each tenant's by themselves, in the order of their coming.

Tenants have their turns one after the other, a transfer each, so that a flood of one is not before what
another asks for; and one that finds no room is passed over, so that it holds nobody else up. Within a
tenant the order stays: parents go before their children.
"""

from collections import OrderedDict
from collections.abc import Collection

import numpy as np

from kvstore.core.shares import Shares

__all__ = ["Queues"]


class Queues:
    """`places`: of each row that waits the place of its tenant, kept in step."""

    def __init__(self, shares: Shares, places: dict[int, int]) -> None:
        self._shares = shares
        self._places = places
        # By place, whose turn is next first; none that is empty.
        self._queues: dict[int, OrderedDict[int, None]] = {}

    def add(self, rows: Collection[int]) -> None:
        """Rows that wait already keep their place, unless they have become another tenant's since."""
        for row, place in zip(rows, self._shares.places(np.array([*rows], np.intp)).tolist(), strict=True):
            known = self._places.get(row)
            if known != place:
                if known is not None:
                    self._remove(known, row)
                self._places[row] = place
                self._queues.setdefault(place, OrderedDict())[row] = None

    def take(self, count: int, stalled: Collection[int]) -> list[int]:
        """The next rows, of those whose place is not stalled."""
        taken: list[int] = []
        for place in [place for place in self._queues if place not in stalled]:
            queue = self._queues.pop(place)
            while queue and len(taken) < count:
                row, _ = queue.popitem(last=False)
                del self._places[row]
                taken.append(row)
            if queue:
                self._queues[place] = queue
            if len(taken) == count:
                break
        return taken

    def put_back(self, rows: list[int]) -> set[int]:
        """Before all others of their tenants. Returns the places of these."""
        self.add(rows)
        for row in reversed(rows):
            self._queues[self._places[row]].move_to_end(row, last=False)
        return {self._places[row] for row in rows}

    def give_up(self, count: int) -> list[int]:
        """The last rows of those who have most: a flood loses its own."""
        given_up: list[int] = []
        while len(given_up) < count and self._queues:
            place = max(self._queues, key=lambda place: len(self._queues[place]))
            row = next(reversed(self._queues[place]))
            self._remove(place, row)
            del self._places[row]
            given_up.append(row)
        return given_up

    def waits_beside(self, stalled: Collection[int]) -> bool:
        """Whether there is a row whose place is not stalled."""
        return any(place not in stalled for place in self._queues)

    def check(self) -> bool:
        """Whether each row stands in one queue, that of its tenant when it was asked for."""
        stand = {row: place for place, queue in self._queues.items() for row in queue}
        return stand == self._places and all(self._queues.values())

    def _remove(self, place: int, row: int) -> None:
        queue = self._queues[place]
        del queue[row]
        if not queue:
            del self._queues[place]
