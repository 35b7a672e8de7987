"""Fair between tenants: each has a share of each tier that others don't take from it.

What a tenant does not use of its share is lent: others may fill it, and it is taken back from them first. So
a tenant that floods a tier evicts what it has borrowed and then its own, and those that keep to their shares
notice nothing. Two things go before shares, as they go before all that is cached: frames of the GPU for what
runs, and the CPU frames through which what an engine waits for is read.

Frames count for whoever committed their blocks, or was granted them. Where there is one tenant nothing
of this costs anything.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvstore.core.blocks import Blocks
from kvstore.core.config import SHARE_ROUNDING, StoreConfig
from kvstore.core.types import TENANT_MASK, DomainId, Rows, Tier

__all__ = ["NOBODY", "Allowance", "Shares"]

# No tenant in particular, or several at once.
NOBODY = DomainId(0)
# No tenant can be called so: it stands for the default one.
NAMED_NO_MORE = ""
NO_NAMES: tuple[str, ...] = ()
# Of each tenant, by its place: how many blocks it may lose.
Allowance = NDArray[np.int64]


class Shares:
    """Frames by tier and tenant. A tenant's *place* is its position among the ids; the last one is for all
    tenants that were found on disk and are named no more, who have no share."""

    def __init__(self, config: StoreConfig, blocks: Blocks) -> None:
        self._blocks = blocks
        self.are_shared = len(config.tenants) > 1
        by_id = sorted((tenant, name) for name, tenant in config.tenants.items())
        # By place.
        self.names = [*(name for _, name in by_id), NAMED_NO_MORE]
        self._ids = np.array([tenant for tenant, _ in by_id], np.int64)
        shares = [config.share_of(name) for _, name in by_id]
        # By tier and place: frames that nobody else takes, and frames that the tenant has.
        self.guaranteed = tuple(
            np.array([*(int(share * size + SHARE_ROUNDING) for share in shares), 0], np.int64)
            for size in config.frames
        )
        self.used = tuple(np.zeros(len(by_id) + 1, np.int64) for _ in config.frames)

    def are_ones(self, domains: Sequence[tuple[DomainId, int]]) -> bool:
        """Whether all of these are the same tenant's."""
        return len({domain & TENANT_MASK for domain, _ in domains}) == 1

    def place_of(self, domain: DomainId) -> int:
        """Of the domain's tenant."""
        return int(self._find(np.array([domain & TENANT_MASK]))[0])

    def tenant_of(self, domain: DomainId) -> str:
        """The name of the domain's tenant; empty where there is only one."""
        return self.names[self.place_of(domain)] if self.are_shared else NAMED_NO_MORE

    def tenants_of(self, rows: Rows) -> tuple[str, ...]:
        """The names of those whose blocks these are; none where there is only one tenant."""
        if not self.are_shared or not rows.size:
            return NO_NAMES
        places = self.places(rows)
        if (places == places[0]).all():
            return (self.names[places[0]],)
        return tuple(self.names[place] for place in np.unique(places))

    def places(self, rows: Rows) -> Rows:
        """Of each block's tenant."""
        return self._find(self._blocks.domain[rows] & TENANT_MASK)

    def by_tenant(self, rows: Rows) -> list[tuple[DomainId, Rows]]:
        """These blocks in their order, those of each tenant by themselves, with a domain of its."""
        places = self.places(rows)
        groups = [rows[places == place] for place in np.unique(places)]
        return [(DomainId(int(self._blocks.domain[group[0]])), group) for group in groups]

    def count(self, tier: Tier, rows: Rows, change: int) -> None:
        """These blocks have got frames in the tier (1), or lost them (-1)."""
        self._blocks.changes += 1
        self.used[tier][:] += change * np.bincount(self.places(rows), minlength=self._ids.size + 1)

    def allowances(self, tier: Tier, domain: DomainId, count: int) -> list[Allowance]:
        """From whom `count` frames may be taken for a tenant, first from the first.

        From whom has borrowed more than this tenant will have with them, then from itself, then from all who
        have borrowed. So one that is within its share takes back before it gives up its own, and one that
        floods gives up its own as soon as nobody has more. What nobody can find any more goes before all.
        """
        used, guaranteed = self.used[tier], self.guaranteed[tier]
        mine = self.place_of(domain)
        borrowed = np.maximum(used - guaranteed, 0)
        more = np.maximum(borrowed - max(0, int(used[mine] + count - guaranteed[mine])), 0)
        more[-1] = used[-1]
        own = np.zeros_like(used)
        own[mine] = used[mine]
        more[mine] = borrowed[mine] = 0
        return [more, own, borrowed]

    def cut(self, rows: Rows, allowance: Allowance) -> Rows:
        """Of these blocks, in their order, as many of each tenant as it may lose.

        What is left can go if all could: a chain is one tenant's, and loses its end of the order.
        """
        places = self.places(rows)
        order = np.argsort(places, kind="stable")
        counts = np.bincount(places, minlength=allowance.size)
        ranks = np.empty(rows.size, np.intp)
        ranks[order] = np.arange(rows.size) - np.repeat(np.cumsum(counts) - counts, counts)
        allowed: Rows = rows[ranks < allowance[places]]
        return allowed

    def _find(self, tenants: NDArray[np.int64]) -> Rows:
        places = np.searchsorted(self._ids, tenants)
        unknown = self._ids[np.minimum(places, self._ids.size - 1)] != tenants
        return np.where(unknown, self._ids.size, places)
