"""Hits that were lost for want of room: what a tier twice as large would have had.

The names of blocks that a tier has evicted for room are its ghosts, as many as it has frames; it and they
together are what a tier of twice the size would hold. So what a prompt asks for and nobody has, but a ghost
remembers, is such a hit: counted by tier, they tell what more of it would give. Exact for one tier in which
the least recently used goes. Where there are several, each is looked at as if it alone were larger.

A ghost costs some 250 bytes, so of a large tier only a sample is remembered, picked by key, and each
counts for all that it stands for. Of a key that two tenants or namespaces have lost the last one's ghost
is left. What a Forget has taken out since is not told from what was evicted.
"""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import takewhile
from zlib import crc32

from kvstore.core.blocks import Blocks
from kvstore.core.errors import check
from kvstore.core.types import BlockKey, DomainId, Rows, Tier

__all__ = ["GHOSTS_MAX", "Regret"]

# Of a tier. Two megabytes; and as few of what is evicted have to be noted, they cost next to nothing.
GHOSTS_MAX = 8_192
# Whose each block was, by its key.
Named = dict[BlockKey, int]


class Regret:
    """Of all tiers. `blocks_hit`: since the start, by tier."""

    def __init__(self, blocks: Blocks, sizes: Sequence[int]) -> None:
        self._blocks = blocks
        self._by_tier = [_Sample(size) for size in sizes]
        self.blocks_hit = [0 for _ in sizes]
        # Evicted by the event that is being handled: not yet ghosts for the prompts that they make room for.
        self.evicted: list[tuple[Tier, Named]] = []

    def note(self, tier: Tier, rows: Rows) -> None:
        """These leave the tier for want of room, the least recently used first; of them those of the sample
        are remembered."""
        named, mask = self._name(rows), self._by_tier[tier].mask
        if mask:
            named = {key: domain for key, domain in named.items() if not crc32(key) & mask}
        self.evicted.append((tier, named))

    def settle(self) -> None:
        """After each event that has evicted something."""
        for tier, named in self.evicted:
            self._by_tier[tier].add(named)
        self.evicted.clear()

    def return_to(self, tier: Tier, rows: Rows) -> None:
        """These are given frames in the tier again."""
        ghosts = self._by_tier[tier]
        if ghosts.named:
            ghosts.remove(self._name(rows))

    def count(self, domain: DomainId, keys: Sequence[BlockKey], found: int, queried: int) -> None:
        """A prompt is admitted: of its keys so many were looked for, and the first `found` were had.

        All behind these is computed, and so is no ghost any more.
        """
        missed: Sequence[BlockKey] = ()
        for tier, ghosts in enumerate(self._by_tier):
            if ghosts.named:
                missed = missed or keys[found:]
                if not ghosts.named.keys().isdisjoint(missed):
                    self.blocks_hit[tier] += ghosts.count_leading(domain, missed[: queried - found])
                    ghosts.remove(dict.fromkeys(missed, domain))

    def count_of(self, tier: Tier) -> int:
        """How many ghosts a tier has now."""
        return len(self._by_tier[tier].named)

    def check_bounds(self) -> None:
        """Nothing waits to be settled, and no tier has more ghosts than it may."""
        check(not self.evicted, "blocks were evicted and are no ghosts")
        for ghosts in self._by_tier:
            check(len(ghosts.named) <= ghosts.most, "a tier has more ghosts than frames")
            check(all(map(ghosts.is_sampled, ghosts.named)), "a ghost is not of the sample")

    def _name(self, rows: Rows) -> Named:
        keys = self._blocks.key
        named = [keys[row] for row in rows.tolist()]
        return dict(zip(named, self._blocks.domain[rows].tolist(), strict=True))


class _Sample:
    """Regret of one tier, the oldest first: of all keys those whose checksums end in so many zeros."""

    def __init__(self, frame_count: int) -> None:
        shift = max(0, (frame_count - 1) // GHOSTS_MAX).bit_length()
        self.mask = (1 << shift) - 1
        self.most = frame_count >> shift
        self.named: OrderedDict[BlockKey, int] = OrderedDict()

    def is_sampled(self, key: BlockKey) -> bool:
        return crc32(key) & self.mask == 0

    def add(self, named: Named) -> None:
        ghosts = self.named
        if not ghosts.keys().isdisjoint(named):
            for key in named:
                ghosts.pop(key, None)
        ghosts.update(named)
        for _ in range(len(ghosts) - self.most):
            ghosts.popitem(last=False)

    def remove(self, named: Named) -> None:
        ghosts = self.named
        for key in ghosts.keys() & named:
            if ghosts[key] == named[key]:
                del ghosts[key]

    def count_leading(self, domain: DomainId, keys: Sequence[BlockKey]) -> int:
        """How many blocks are ghosts up to the first that is none, as far as the sample tells."""
        named = self.named
        sampled = filter(self.is_sampled, keys) if self.mask else keys
        there = takewhile(lambda key: named.get(key) == domain, sampled)
        return sum(1 for _ in there) * (self.mask + 1)
