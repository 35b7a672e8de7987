"""The index by tier as it changes, for those who watch.

While nobody does it costs a look at an attribute where blocks enter the index or a tier, or leave it. Those
are few places, and each says which rows: whoever applies what is told, in order, has the index by tier as
it is (tests/core/test_watching.py).
"""

from msgspec import Struct

from kvstore.core.blocks import Blocks, Rows
from kvstore.core.types import BlockKey, Tier

__all__ = ["KEYS_MAX", "IndexChange", "IndexChanges"]

# In one event: 128 KiB of keys.
KEYS_MAX = 4_096


class IndexChange(Struct):
    """Blocks of one domain that can be found in a tier from now on; not `is_stored`: no more."""

    is_stored: bool
    tier: Tier
    domain: int
    keys: list[BlockKey]


class IndexChanges:
    """Gathered while an event is handled. Rows become keys at once: a row may mean another block soon."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self._changes: list[IndexChange] = []

    def stored(self, tier: Tier, rows: Rows) -> None:
        """These indexed blocks have become valid here, or these valid ones indexed."""
        self._add(rows, tier, is_stored=True)

    def removed(self, tier: Tier, rows: Rows) -> None:
        """Before it happens: these were indexed and valid here."""
        self._add(rows, tier, is_stored=False)

    def take(self) -> list[IndexChange]:
        """What has gathered, in order."""
        changes, self._changes = self._changes, []
        return changes

    def _add(self, rows: Rows, tier: Tier, *, is_stored: bool) -> None:
        names, changes = self._blocks.key, self._changes
        last = changes[-1] if changes else None
        for row, domain in zip(rows.tolist(), self._blocks.domain[rows].tolist(), strict=True):
            if (
                last is None
                or last.is_stored is not is_stored
                or last.tier is not tier
                or last.domain != domain
                or len(last.keys) == KEYS_MAX
            ):
                last = IndexChange(is_stored, tier, domain, [])
                changes.append(last)
            last.keys.append(names[row])
