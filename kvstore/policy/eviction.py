"""Least recently used, tail first: the block whose chain was used longest ago goes first.

A chain is touched from its tail to its head, so in this order a child always stands before
its parent, and evicting from the front never cuts a chain in the middle.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

from kvstore.core.ports import RowSource
from kvstore.core.types import BlockRow, Tier

__all__ = ["Lru"]

# Rows looked at together; the scan goes on until it has enough or has seen all.
WINDOW = 256


class Lru:
    """One order a tier, as the keys of a dict: oldest first, moved to the end when touched."""

    def __init__(self) -> None:
        self._orders: tuple[dict[BlockRow, None], ...] = tuple({} for _ in Tier)

    def touch(self, tier: Tier, rows: Sequence[BlockRow]) -> None:
        order = self._orders[tier]
        for row in rows:
            order.pop(row, None)
        order.update(dict.fromkeys(rows))

    def forget(self, tier: Tier, rows: Sequence[BlockRow]) -> None:
        order = self._orders[tier]
        for row in rows:
            order.pop(row, None)

    def victims(self, tier: Tier, count: int, removable: RowSource) -> list[BlockRow]:
        victims: list[BlockRow] = []
        candidates: list[BlockRow] = []
        for window in _windows(self._orders[tier], max(WINDOW, 2 * count)):
            candidates += window
            victims = removable(candidates)
            if len(victims) >= count:
                break
        return victims[:count]


def _windows(order: dict[BlockRow, None], size: int) -> Iterator[list[BlockRow]]:
    """The order in pieces that double, so that asking again over all so far stays linear."""
    rows = iter(order)
    while window := list(islice(rows, size)):
        yield window
        size *= 2
