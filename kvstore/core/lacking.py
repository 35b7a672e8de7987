"""Room that was looked for and not found: to look again is of no use until something has changed.

A search that finds too little has gone through the whole tier, some of it in Python. Whoever waits asks again
and again: a step that asks for several, a lane at each tick, an engine whenever it is woken.
"""

from msgspec import Struct

from kvstore.core.blocks import Blocks
from kvstore.core.shares import NOBODY, Shares
from kvstore.core.types import DISK, DomainId, Tier

__all__ = ["Lacking", "Search"]


class Search(Struct, frozen=True):
    """For `wanted` blocks that may go, of which the first `taken` do; what is spared by it is said in
    `Room.find`."""

    tier: Tier
    wanted: int
    taken: int
    domain: DomainId = NOBODY
    in_background: bool = False
    in_share: bool = False
    # Blocks that are held for it, as rows are in memory.
    held: bytes = b""


class Lacking:
    """As of `Blocks.changes`."""

    def __init__(self, blocks: Blocks, shares: Shares) -> None:
        self._blocks = blocks
        self._shares = shares
        self._changes = blocks.changes
        # Each search by what it goes by, with how many blocks it has found.
        self._found: dict[Search, tuple[Search, int]] = {}

    def knows(self, search: Search) -> bool:
        """Whether the search would find too little."""
        if self._changes != self._blocks.changes:
            return False
        _, found = self._found.get(self._kind(search), (search, search.wanted))
        return found < search.wanted

    def note(self, search: Search, found: int) -> None:
        """It has found too little, and nothing has changed since."""
        self.searches()
        self._found[self._kind(search)] = search, found

    def searches(self) -> list[Search]:
        """All that would find too little now."""
        if self._changes != self._blocks.changes:
            self._found.clear()
            self._changes = self._blocks.changes
        return [search for search, _ in self._found.values()]

    def _kind(self, search: Search) -> Search:
        """A search that takes from anybody and has found too little has found all that there is, for whomever
        it was. From whom else how much may be taken depends on how much is wanted."""
        within_shares = search.in_background or search.in_share or search.tier is DISK
        if self._shares.are_shared and within_shares:
            return search
        return Search(search.tier, 0, 0, NOBODY, search.in_background, search.in_share, search.held)
