"""Ghosts: names of blocks that a tier has evicted for room, as many as it has frames.

A tier and its ghosts together are what one of twice the size would hold. So what a prompt asks for and
nobody has, but a ghost remembers, are hits lost for want of room: they are counted by tier, and tell what
more of it would give. Exact for one tier in which the least recently used goes. Where there are several,
each is looked at as if it alone were larger.

A ghost costs some 200 bytes, so of a large tier only a sample is remembered, picked by name, and each
counts for all that it stands for. A name has 32 bits: two of a million blocks may be taken for each
other, which a figure can bear. What a Forget has taken out since is not told from what was evicted.
"""

from collections import OrderedDict
from collections.abc import Sequence
from zlib import crc32

from kvstore.core.blocks import Blocks
from kvstore.core.errors import check
from kvstore.core.types import BlockKey, DomainId, Rows, Tier

__all__ = ["GHOSTS_MAX", "Ghosts"]

# Of a tier.
GHOSTS_MAX = 65_536
# Spreads the ids of namespaces, so that no two domains of a few thousand begin alike.
SPREAD, NAME_MASK = 2_654_435_761, 0xFFFF_FFFF


class Ghosts:
    """Of all tiers. `blocks_hit`: since the start, by tier."""

    def __init__(self, blocks: Blocks, sizes: Sequence[int]) -> None:
        self._blocks = blocks
        self._by_tier = [_Sample(size) for size in sizes]
        self.blocks_hit = [0 for _ in sizes]
        # Evicted by the event that is being handled: not yet ghosts for the prompts that they make room for.
        self.evicted: list[tuple[Tier, list[int]]] = []

    def note(self, tier: Tier, rows: Rows) -> None:
        """These leave the tier for want of room, the least recently used first."""
        self.evicted.append((tier, self._names(rows)))

    def settle(self) -> None:
        """After each event that has evicted something."""
        for tier, names in self.evicted:
            self._by_tier[tier].add(names)
        self.evicted.clear()

    def return_to(self, tier: Tier, rows: Rows) -> None:
        """These are given frames in the tier again."""
        ghosts = self._by_tier[tier]
        if ghosts.names:
            ghosts.remove(self._names(rows))

    def count(self, domain: DomainId, keys: Sequence[BlockKey], found: int, queried: int) -> None:
        """A prompt is admitted: of its keys so many were looked for, and the first `found` were had.

        All behind these is computed, and so is no ghost any more.
        """
        if not any(ghosts.names for ghosts in self._by_tier):
            return
        start = _start(domain)
        names = [crc32(key, start) for key in keys[found:]]
        for tier, ghosts in enumerate(self._by_tier):
            if ghosts.names:
                self.blocks_hit[tier] += ghosts.count_leading(names[: queried - found])
                ghosts.remove(names)

    def count_of(self, tier: Tier) -> int:
        """How many ghosts a tier has now."""
        return len(self._by_tier[tier].names)

    def check_bounds(self) -> None:
        """Nothing waits to be settled, and no tier has more ghosts than it may."""
        check(not self.evicted, "blocks were evicted and are no ghosts")
        for ghosts in self._by_tier:
            check(len(ghosts.names) <= ghosts.most, "a tier has more ghosts than frames")
            check(all(name & ghosts.mask == 0 for name in ghosts.names), "a ghost is not of the sample")

    def _names(self, rows: Rows) -> list[int]:
        keys, domains = self._blocks.key, self._blocks.domain[rows].tolist()
        return [crc32(keys[row], _start(domain)) for row, domain in zip(rows.tolist(), domains, strict=True)]


class _Sample:
    """Ghosts of one tier, the oldest first: of all names those that end in so many zeros."""

    def __init__(self, frame_count: int) -> None:
        shift = max(0, (frame_count - 1) // GHOSTS_MAX).bit_length()
        self.mask = (1 << shift) - 1
        self.most = frame_count >> shift
        self.names: OrderedDict[int, None] = OrderedDict()

    def add(self, names: list[int]) -> None:
        ghosts, mask = self.names, self.mask
        for name in names:
            if name & mask == 0:
                ghosts[name] = None
                ghosts.move_to_end(name)
        while len(ghosts) > self.most:
            ghosts.popitem(last=False)

    def remove(self, names: list[int]) -> None:
        ghosts = self.names
        for name in names:
            ghosts.pop(name, None)

    def count_leading(self, names: list[int]) -> int:
        """How many blocks are ghosts up to the first that is none, as far as the sample tells."""
        count = 0
        for name in names:
            if name & self.mask == 0:
                if name not in self.names:
                    break
                count += self.mask + 1
        return count


def _start(domain: int) -> int:
    """What a name begins with: the same key of another namespace or tenant is another block."""
    return ((domain >> 32) * SPREAD + domain) & NAME_MASK
