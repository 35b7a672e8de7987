"""Policies: asked by the core through `kvstore.core.ports`, never acting themselves."""

from collections.abc import Callable, Mapping

from kvstore.core.ports import EvictionPolicy
from kvstore.policy.eviction import Lru

__all__ = ["EVICTION_POLICIES"]

# By the names that people give them.
EVICTION_POLICIES: Mapping[str, Callable[[], EvictionPolicy]] = {"lru": Lru}
