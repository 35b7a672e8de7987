"""Policies by the names under which they are chosen, of eviction and of swapping."""

from collections.abc import Sequence

from kvstore.core.errors import ConfigInvalid
from kvstore.core.ports import AdmissionPolicy, EvictionPolicy, SwapPolicy
from kvstore.core.types import CPU, DISK
from kvstore.policy.admission import AdmitByChance
from kvstore.policy.arc import Arc
from kvstore.policy.cost import CostModel
from kvstore.policy.eviction import Lru
from kvstore.policy.lfu import LfuAgeing
from kvstore.policy.s3fifo import S3Fifo
from kvstore.policy.swap import LengthThreshold
from kvstore.policy.worth import Worth

__all__ = [
    "DISK_ADMISSIONS",
    "DISK_ADMISSION_DEFAULT",
    "DROP_TOKENS_MAX_DEFAULT",
    "EVICTION_DEFAULT",
    "EVICTION_POLICIES",
    "SWAP_DEFAULT",
    "SWAP_POLICIES",
    "check_disk_admission",
    "make_admission",
    "make_eviction",
    "make_swap",
]

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
# And of one that a session owns, to disk, where turns are judged.
TURN_READS_PER_WRITE = 0.3

# Of the turns that are freed without a word: each is written to disk, or only what is worth it (ADR 16).
DISK_ADMISSIONS = ("all", "worth")
DISK_ADMISSION_DEFAULT = "all"

SWAP_POLICIES: dict[str, type[CostModel | LengthThreshold]] = {"cost": CostModel, "length": LengthThreshold}
SWAP_DEFAULT = "cost"
# The length up to which a sequence is dropped: by "length", and by "cost" as long as costs are not known.
DROP_TOKENS_MAX_DEFAULT = 64


def check_disk_admission(name: str, eviction: str, *, has_disk: bool = True) -> None:
    """Refuses what there isn't, what this policy of eviction has not learnt enough for, and what would never
    be asked."""
    if name not in DISK_ADMISSIONS:
        remedy = " or ".join(DISK_ADMISSIONS)
        raise ConfigInvalid("no such admission", field="--disk-admission", value=name, remedy=remedy)
    if name == "worth" and EVICTION_POLICIES[eviction] is not Worth:
        raise ConfigInvalid(
            f"eviction by {eviction} does not learn what comes back",
            field="--disk-admission",
            value=name,
            remedy="evict by worth as well",
        )
    if name == "worth" and not has_disk:
        raise ConfigInvalid(
            "there is no disk tier to admit to",
            field="--disk-admission",
            value=name,
            remedy="give --disk as well, or leave --disk-admission out",
        )


def make_eviction(name: str, frames: Sequence[int]) -> EvictionPolicy:
    """A new one, for tiers of so many frames, the GPU's first."""
    policy = EVICTION_POLICIES[name]
    return policy(frames) if issubclass(policy, Arc | S3Fifo) else policy()


def make_admission(eviction: EvictionPolicy) -> AdmissionPolicy | None:
    """By what this policy learns; None: it learns nothing of that."""
    if not isinstance(eviction, Worth):
        return None
    return AdmitByChance(eviction, READS_PER_WRITE, TURN_READS_PER_WRITE)


def make_swap(name: str, drop_tokens_max: int = DROP_TOKENS_MAX_DEFAULT) -> SwapPolicy:
    """A new one, which has learnt nothing yet."""
    return SWAP_POLICIES[name](drop_tokens_max)
