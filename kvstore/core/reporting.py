"""Counts what the store holds, for people and for `kvstore status`. Changes nothing."""

import numpy as np

from kvstore.core.links import Links
from kvstore.core.membership import Membership
from kvstore.core.memory import Memory
from kvstore.core.pressure import PressureGauge
from kvstore.core.types import GPU, Pressure, Revision, Tier
from kvstore.core.usage import EngineUsage, LaneUsage, TierUsage, Usage

__all__ = ["report_usage"]


def report_usage(
    memory: Memory, links: Links, membership: Membership, gauge: PressureGauge, revision: Revision
) -> Usage:
    held = {engine.id: membership.quarantined_frames(engine) for engine in membership.engines.values()}
    engines = tuple(
        EngineUsage(
            engine=engine.id,
            state=engine.state,
            lease_expire_time=engine.lease_expire_time,
            build=engine.build,
            sequences=len(engine.sequences),
            frames_quarantined=held[engine.id],
            pids=tuple(engine.pids),
        )
        for engine in membership.engines.values()
    )
    tiers = tuple(
        _tier_usage(memory, links, tier, gauge.pressure[tier], sum(held.values()) if tier is GPU else 0)
        for tier in Tier
    )
    lanes = tuple(
        LaneUsage(
            source=source,
            target=target,
            urgency=urgency,
            blocks_waiting=len(lane.rows),
            transfers_under_way=lane.under_way,
        )
        for ((source, target), urgency), lane in links.lanes.items()
    )
    return Usage(revision=revision, tiers=tiers, engines=engines, lanes=lanes)


def _tier_usage(memory: Memory, links: Links, tier: Tier, pressure: Pressure, quarantined: int) -> TierUsage:
    blocks, pool = memory.blocks, memory.pools[tier]
    rows = pool.owned()
    referred = blocks.in_use(rows) if tier is GPU else blocks.claims[rows] > 0
    return TierUsage(
        tier=tier,
        frames_total=pool.frame_count,
        frames_free=pool.free_count,
        frames_cached=int(np.count_nonzero(blocks.valid[tier][rows] & ~referred)),
        frames_pinned=int(np.count_nonzero(blocks.pins[tier][rows])),
        frames_quarantined=quarantined,
        frames_late=pool.withheld_count,
        pressure=pressure,
        blocks_moved_in=links.blocks_moved_in[tier],
        blocks_failed=links.blocks_failed[tier],
        blocks_evicted=memory.blocks_evicted[tier],
        blocks_shed=memory.blocks_shed[tier],
    )
