"""What the figures of a service advise: a pure function of its usage, silent where there is little to go by.

Each rule looks at one thing and says what was seen, what it means and what to do about it.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise

from kvstore.cli.advice_gain import SHARE_OF_BLOCKS, advise_gain, is_memory_short
from kvstore.cli.advice_ghosts import advise_ghosts
from kvstore.cli.advice_links import FLAGS, NAMES, Advice, advise_links, advise_writes
from kvstore.cli.advice_sizes import advise_sizes
from kvstore.cli.advice_tenants import advise_tenants
from kvstore.cli.texts import counted
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["Advice", "advise"]

# Below the first the lookups and the room for what is never found cost more than is saved; above the
# second more room is likely to be used as well.
HIT_RATE_LOW, HIT_RATE_HIGH = 0.20, 0.50
# Fewer than these say nothing yet.
SEQUENCES_MIN, BLOCKS_MIN, EVICTED_MIN, SWAPS_MIN, PREEMPTIONS_MIN = 50, 500, 100, 10, 10
# As many as a line has room for.
PIDS_SHOWN = 4
# Of all hits; of all swaps that were wanted.
SHARE_OF_HITS, SHARE_OF_SWAPS = 0.25, 0.10
# A tier's frames that can't be given up, and those that are of use: far apart, something is reserved.
MEMORY_HIGH, BLOCKS_LOW = 0.80, 0.50

# What is found in a reason, in lower case, and what helps.
DISK_REMEDIES = (
    (
        ("damaged", "corrupt"),
        "stop the service and try `kvstore verify --repair`, which saves what is good; where that "
        "doesn't help, delete the folder: its blocks will be computed again",
    ),
    (("read-only", "erofs"), "mount the file system for writing again"),
    (("quota", "edquot"), "raise the quota of the service's user"),
    (("no space", "enospc"), "make room on its file system"),
    (("mapfull", "map_full", "index"), "give it a larger --disk-bytes"),
    (("full",), "make room on its file system, or give it a larger --disk-bytes"),
    (("input/output", "i/o error", "eio"), "look at the kernel's log: the device may be about to die"),
    (("late", "deadline", "timed out"), "look at the device: it takes longer for a call than it may"),
)


def advise(usage: pb.Usage) -> list[Advice]:
    """What matters most comes first."""
    return [advice for rule in RULES for advice in rule(usage)]


def _degraded(usage: pb.Usage) -> Iterator[Advice]:
    for tier in usage.tiers:
        if tier.degraded:
            reason = tier.degraded_reason or "the log says why"
            known = reason.lower()
            remedies = [what for words, what in DISK_REMEDIES if any(word in known for word in words)]
            remedy = remedies[0] if remedies else "look at the device and at the service's log"
            yield Advice(
                "degraded",
                f"Nothing is written to {NAMES[tier.tier]} ({reason}); what is there is still read. To do: "
                f"{remedy}. Writing is tried again by itself.",
            )


def _disk_room(usage: pb.Usage) -> Iterator[Advice]:
    for tier in usage.tiers:
        if 0 < tier.bytes_obtainable < tier.bytes_total:
            yield Advice(
                "disk_room",
                f"The {NAMES[tier.tier]} may take {tier.bytes_total:,} bytes, and there is room for "
                f"{tier.bytes_obtainable:,}, with all that is free on its file system: when that is full, "
                f"writing stops. Make room there, or start with a smaller {FLAGS[tier.tier]}.",
            )


def _bad_entries(usage: pb.Usage) -> Iterator[Advice]:
    for tier in usage.tiers:
        if tier.bad_entries:
            yield Advice(
                "bad_entries",
                f"Found wrong on {NAMES[tier.tier]} and dropped: {counted(tier.bad_entries, 'block')}, to be "
                "computed again. If there are more with time, the device changes what is stored: replace it.",
            )


def _hit_rate_low(usage: pb.Usage) -> Iterator[Advice]:
    rate = _hit_rate(usage)
    # Where nothing at all is gained, that is what is told.
    if rate is not None and rate < HIT_RATE_LOW and (rate >= SHARE_OF_BLOCKS or is_memory_short(usage)):
        yield Advice(
            "hit_rate_low",
            f"Only {rate:.0%} of the blocks that prompts ask for are found: below {HIT_RATE_LOW:.0%} prefix "
            "caching costs more than it gives. Send block keys for prompts that begin alike (a chat's turns, "
            "a system prompt) and leave them out elsewhere.",
        )


def _hit_rate_high(usage: pb.Usage) -> Iterator[Advice]:
    rate = _hit_rate(usage)
    if rate is None or rate <= HIT_RATE_HIGH or any(advise_ghosts(usage)):
        # What was lost is better to go by than what was evicted.
        return
    below = [tier for tier in reversed(usage.tiers) if tier.frames_total]
    if below and below[0].blocks_evicted >= EVICTED_MIN:
        lowest = below[0]
        yield Advice(
            "larger_tier",
            f"{rate:.0%} of the blocks asked for are found, and {lowest.blocks_evicted:,} were evicted from "
            f"{NAMES[lowest.tier]}, the lowest tier: those have to be computed again. A larger "
            f"{FLAGS[lowest.tier]} pays{_or_a_tier_below(lowest)}.",
        )
        return
    # Nothing is lost; then it is the tier above the one that most has to be fetched from.
    for lower, tier in pairwise(below):
        share = _hits(usage)[lower.tier] / sum(_hits(usage).values())
        if share >= SHARE_OF_HITS and tier.blocks_evicted >= EVICTED_MIN:
            yield Advice(
                "larger_tier",
                f"{rate:.0%} of the blocks asked for are found, but {share:.0%} of these in "
                f"{NAMES[lower.tier]} only, and {tier.blocks_evicted:,} were evicted from "
                f"{NAMES[tier.tier]}. A larger {FLAGS[tier.tier]} pays: they need not be fetched then.",
            )
            return


def _or_a_tier_below(tier: pb.TierUsage) -> str:
    return {pb.TIER_GPU: ", or a CPU tier (--cpu)", pb.TIER_CPU: ", or a disk tier (--disk)"}.get(
        tier.tier, ""
    )


def _reserved(usage: pb.Usage) -> Iterator[Advice]:
    for tier in usage.tiers:
        if tier.tier == pb.TIER_DISK or not tier.frames_total:
            continue
        reserves = {
            "quarantine": tier.frames_quarantined,
            "limbo": tier.frames_limbo,
            "idle": tier.frames_idle,
            "late": 0,
        }
        taken = tier.frames_total - tier.frames_free - tier.frames_cached
        of_use = max(0, tier.frames_used - sum(reserves.values()))
        # What no sequence refers to is what transfers fill, or may fill still.
        reserves["late"] = tier.frames_late
        reserves["transfers"] = max(0, taken - tier.frames_used - tier.frames_late)
        if taken < MEMORY_HIGH * tier.frames_total or of_use > BLOCKS_LOW * tier.frames_total:
            continue
        most = max(reserves, key=reserves.__getitem__)
        yield Advice(
            "reserved",
            f"{taken / tier.frames_total:.0%} of the {NAMES[tier.tier]} frames are taken, and "
            f"{of_use / tier.frames_total:.0%} are of use to what runs. "
            f"{reserves[most]:,} frames are {_explain(most, usage)}",
        )


def _explain(reserve: str, usage: pb.Usage) -> str:
    if reserve == "quarantine":
        pids = [pid for engine in usage.engines if engine.frames_quarantined for pid in engine.peer_pids]
        named = ", ".join(map(str, pids[:PIDS_SHOWN])) + (", …" if len(pids) > PIDS_SHOWN else "")
        who = f"processes {named}" if pids else "processes"
        return f"in quarantine: {who} of expired engines still map the pool. End them."
    if reserve == "limbo":
        return (
            "in limbo: given up, but the engine's steps that used them are not reported as completed. "
            "Tell completed_step sooner, by KeepAlive where no step follows."
        )
    if reserve == "idle":
        return "held by sequences that are resident and don't run. Swap these out, or free them."
    if reserve == "late":
        return "withheld: reads from disk that were late may still fill them. Look at the device."
    return "of transfers that have not ended. Look at the links, and at the disk's health."


def _swaps(usage: pb.Usage) -> Iterator[Advice]:
    sequences = usage.sequences
    wanted = sequences.swaps_out + sequences.drops_for_room
    if sequences.drops_for_room < SWAPS_MIN or sequences.drops_for_room < SHARE_OF_SWAPS * wanted:
        return
    has_cpu = any(tier.tier == pb.TIER_CPU for tier in usage.tiers)
    limit = (
        "The CPU tier's size is the limit: give it a larger --cpu."
        if has_cpu
        else "Give it a CPU tier: --cpu."
    )
    yield Advice(
        "swap_room",
        f"{sequences.drops_for_room:,} of {wanted:,} swaps found no room below and became drops, so these "
        f"sequences are computed again. {limit}",
    )


def _preemptions(usage: pb.Usage) -> Iterator[Advice]:
    reliefs, admitted = usage.sequences.reliefs, usage.prefix.sequences_admitted
    if reliefs >= PREEMPTIONS_MIN and reliefs * 2 >= admitted:
        yield Advice(
            "preemptions",
            f"The store moved sequences out of the way {reliefs:,} times, for {admitted:,} "
            "admissions: more rest on the GPU than it has room for. Run fewer at once, or raise --gpu.",
        )


def _hits(usage: pb.Usage) -> dict[pb.Tier.ValueType, int]:
    prefix = usage.prefix
    return {
        pb.TIER_GPU: prefix.gpu_blocks,
        pb.TIER_CPU: prefix.cpu_blocks,
        pb.TIER_DISK: prefix.disk_blocks,
    }


def _hit_rate(usage: pb.Usage) -> float | None:
    """None: too little was asked for."""
    prefix = usage.prefix
    if prefix.sequences_admitted < SEQUENCES_MIN or prefix.blocks_queried < BLOCKS_MIN:
        return None
    return sum(_hits(usage).values()) / prefix.blocks_queried


RULES: tuple[Callable[[pb.Usage], Iterator[Advice]], ...] = (
    _degraded,
    _disk_room,
    _bad_entries,
    _reserved,
    _swaps,
    advise_links,
    advise_writes,
    _preemptions,
    advise_tenants,
    advise_sizes,
    advise_ghosts,
    advise_gain,
    _hit_rate_low,
    _hit_rate_high,
)
