"""What the store and its tiers tell of themselves, as the contract's Usage."""

from collections.abc import Collection

from kvstore.core.types import Tier
from kvstore.core.usage import EngineUsage, TierUsage, Usage
from kvstore.server.encode import encode_engine
from kvstore.server.encode_events import PRESSURES, TIERS
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["encode_usage"]


def encode_usage(
    usage: Usage, store_epoch: int, degraded: Collection[Tier], *, draining: bool = False
) -> pb.Usage:
    """`degraded` comes from the tiers: the core does not know why a transfer failed."""
    return pb.Usage(
        revision=usage.revision,
        store_epoch=store_epoch,
        tiers=[_tier(tier, tier.tier in degraded) for tier in usage.tiers],
        engines=[_engine(engine, store_epoch) for engine in usage.engines],
        draining=draining,
    )


def _tier(usage: TierUsage, degraded: bool) -> pb.TierUsage:
    return pb.TierUsage(
        tier=TIERS[usage.tier],
        frames_total=usage.frames_total,
        frames_free=usage.frames_free,
        frames_cached=usage.frames_cached,
        frames_pinned=usage.frames_pinned,
        frames_quarantined=usage.frames_quarantined,
        pressure=PRESSURES[usage.pressure],
        degraded=degraded,
        blocks_moved_in=usage.blocks_moved_in,
        blocks_failed=usage.blocks_failed,
        blocks_evicted=usage.blocks_evicted,
    )


def _engine(usage: EngineUsage, store_epoch: int) -> pb.EngineUsage:
    return pb.EngineUsage(
        engine=encode_engine(usage.engine, usage.state, usage.lease_expire_time, store_epoch),
        build=usage.build,
        sequences=usage.sequences,
        frames_quarantined=usage.frames_quarantined,
        peer_pids=usage.pids,
    )
