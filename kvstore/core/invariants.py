"""What must be true of a store between any two events, derived again from the ground up.

For tests, the simulator and the replayer: it looks at everything and takes its time. Each
rule raises `CheckFailed` with the first thing that is wrong.
"""

from kvstore.core.invariants_cache import check_cache
from kvstore.core.invariants_frames import check_frames
from kvstore.core.invariants_waiting import check_waiting
from kvstore.core.store import Store
from kvstore.core.types import BlockKey, NamespaceId, TenantId, Tier, domain_parts

__all__ = ["Found", "check_invariants", "found_by_tier"]

# A block as it is told to those who watch.
Found = tuple[Tier, NamespaceId, TenantId, BlockKey]


def check_invariants(store: Store) -> None:
    with store.memory.eviction.looking():
        check_frames(store)
        check_cache(store)
        check_waiting(store)


def found_by_tier(store: Store) -> set[Found]:
    """The index by tier, for those who compare theirs with it."""
    valid = store.memory.blocks.valid
    return {
        (tier, *domain_parts(domain), key)
        for (domain, key), row in store.memory.prefix.entries()
        for tier in Tier
        if valid[tier][row]
    }
