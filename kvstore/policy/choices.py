"""Policies of eviction by the names under which they are chosen."""

from kvstore.core.ports import EvictionPolicy
from kvstore.policy.eviction import Lru
from kvstore.policy.lfu import LfuAgeing

__all__ = ["EVICTION_DEFAULT", "EVICTION_POLICIES"]

EVICTION_POLICIES: dict[str, type[EvictionPolicy]] = {
    "lru": Lru,
    "lfu": LfuAgeing,
}
EVICTION_DEFAULT = "lru"
