"""Policies of eviction by the names under which they are chosen."""

from collections.abc import Sequence

from kvstore.core.ports import AdmissionPolicy, EvictionPolicy
from kvstore.core.types import CPU, DISK
from kvstore.policy.admission import AdmitByChance
from kvstore.policy.arc import Arc
from kvstore.policy.eviction import Lru
from kvstore.policy.lfu import LfuAgeing
from kvstore.policy.s3fifo import S3Fifo
from kvstore.policy.worth import Worth

__all__ = ["EVICTION_DEFAULT", "EVICTION_POLICIES", "make_admission", "make_eviction"]

EVICTION_POLICIES: dict[str, type[Worth | Lru | LfuAgeing | Arc | S3Fifo]] = {
    "worth": Worth,
    "lru": Lru,
    "lfu": LfuAgeing,
    "arc": Arc,
    "s3-fifo": S3Fifo,
}
EVICTION_DEFAULT = "worth"
# What a copy of a block that no session owns has to be expected to bring, by tier (`admission.py`).
READS_PER_WRITE = {CPU: 0.08, DISK: 0.15}


def make_eviction(name: str, frames: Sequence[int]) -> EvictionPolicy:
    """A new one, for tiers of so many frames, the GPU's first."""
    policy = EVICTION_POLICIES[name]
    return policy(frames) if issubclass(policy, Arc | S3Fifo) else policy()


def make_admission(eviction: EvictionPolicy) -> AdmissionPolicy | None:
    """By what this policy learns; None: it learns nothing of that."""
    return AdmitByChance(eviction, READS_PER_WRITE) if isinstance(eviction, Worth) else None
