"""Figures of a service, as advice is given by them."""

from collections.abc import Iterable
from typing import Any

from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["CPU", "DISK", "GPU", "MB", "link", "moves", "tenant", "tier", "usage"]

MB = 10**6
GPU, CPU, DISK = pb.TIER_GPU, pb.TIER_CPU, pb.TIER_DISK


def tier(which: pb.Tier.ValueType, frames: int = 1000, **figures: Any) -> pb.TierUsage:
    """All of its frames are free but those that the figures name."""
    taken = figures.get("frames_used", 0) + figures.get("frames_cached", 0)
    return pb.TierUsage(tier=which, frames_total=frames, **({"frames_free": frames - taken} | figures))


def usage(
    *tiers: pb.TierUsage,
    sequences: int = 1000,
    queried: int = 10_000,
    moves: pb.SequenceUsage | None = None,
    engines: Iterable[pb.EngineUsage] = (),
    links: Iterable[pb.LinkUsage] = (),
    tenants: Iterable[pb.TenantUsage] = (),
    sessions: int = 1,
    **hits: int,
) -> pb.Usage:
    prefix = pb.PrefixUsage(sequences_admitted=sequences, blocks_queried=queried, **hits)
    tiers = tiers or (tier(GPU), tier(CPU))
    message = pb.Usage(tiers=tiers, prefix=prefix, sequences=moves, engines=engines, links=links)
    message.tenants.extend(tenants)
    message.block_bytes, message.block_tokens, message.sessions = MB, 16, sessions
    return message


def link(
    source: pb.Tier.ValueType,
    target: pb.Tier.ValueType,
    *,
    waiting: int = 0,
    limit: int = 0,
    bandwidth: float = 0.0,
) -> pb.LinkUsage:
    """One block of a megabyte is moved, the others wait."""
    return pb.LinkUsage(
        source=source,
        target=target,
        blocks_under_way=min(waiting, 1),
        lanes=[pb.LaneUsage(urgency=pb.URGENCY_NEEDED, blocks_waiting=max(0, waiting - 1))],
        limit=pb.RateLimit(bytes_per_second=limit, effective_bytes_per_second=limit),
        rate=pb.LinkRate(bandwidth_bytes_per_second=bandwidth),
    )


def tenant(name: str, taken: int, guaranteed: int, waiting: int = 0) -> pb.TenantUsage:
    """All of its CPU frames are borrowed, which nobody waits for."""
    frames = [
        pb.TenantFrames(tier=GPU, frames_taken=taken, frames_guaranteed=guaranteed),
        pb.TenantFrames(tier=CPU, frames_taken=900, frames_guaranteed=0),
    ]
    return pb.TenantUsage(tenant=name, frames=frames, sequences_waiting=waiting)


def moves(**counts: int) -> pb.SequenceUsage:
    return pb.SequenceUsage(**counts)
