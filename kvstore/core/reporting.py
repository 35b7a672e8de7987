"""What the store holds, for people and for `kvstore status`, and how one sequence stands. Changes nothing."""

from collections import Counter

import numpy as np

from kvstore.core.admission import Admission
from kvstore.core.answering import Answering
from kvstore.core.answers import SequenceAnswer
from kvstore.core.blocks import concat
from kvstore.core.config import StoreConfig
from kvstore.core.engines import Engine
from kvstore.core.errors import SequenceUnknown
from kvstore.core.leaving import Leaving
from kvstore.core.links import Links
from kvstore.core.membership import Membership
from kvstore.core.memory import Memory
from kvstore.core.pressure import PressureGauge
from kvstore.core.returning import Returning
from kvstore.core.sessions import Sessions
from kvstore.core.swaps import Swaps
from kvstore.core.types import (
    DROPPED,
    GPU,
    RESIDENT,
    SWAPPED,
    SWAPPING_IN,
    SWAPPING_OUT,
    Pressure,
    Revision,
    SequenceId,
    Tier,
)
from kvstore.core.usage import (
    EngineUsage,
    LaneUsage,
    SequenceUsage,
    TenantFrames,
    TenantUsage,
    TierUsage,
    Usage,
)

__all__ = ["report_sequence", "report_sequences", "report_tenants", "report_usage"]


def report_usage(
    memory: Memory,
    links: Links,
    membership: Membership,
    gauge: PressureGauge,
    leaving: Leaving,
    sessions: Sessions,
    sequences: SequenceUsage,
    tenants: tuple[TenantUsage, ...],
    revision: Revision,
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
    idle = _idle_frames(memory, leaving)
    tiers = tuple(
        _tier_usage(memory, links, tier, gauge.pressure[tier], sum(held.values()), idle)
        if tier is GPU
        else _tier_usage(memory, links, tier, gauge.pressure[tier], 0, 0)
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
    return Usage(
        revision=revision,
        tiers=tiers,
        engines=engines,
        lanes=lanes,
        sequences=sequences,
        tenants=tenants,
        sessions=len(sessions),
        session_keys=sessions.key_count,
    )


def report_sequence(
    config: StoreConfig, engine: Engine, id: SequenceId, answering: Answering
) -> SequenceAnswer:
    sequence = engine.sequences.get(id)
    if sequence is None:
        raise SequenceUnknown(
            "the engine has no such sequence",
            field="sequence",
            value=id,
            remedy="Allocate or Fork creates a sequence",
        )
    (table,) = answering.frames([sequence.rows]) if sequence.state is RESIDENT else ((),)
    # What is committed is filled, whether the engine has said so in a swap or not.
    valid_tokens = max(sequence.filled_tokens, sequence.committed * config.block_tokens)
    return SequenceAnswer(
        state=sequence.state,
        activity=sequence.activity,
        token_count=sequence.token_count,
        valid_tokens=min(valid_tokens, sequence.token_count),
        block_table=table,
        session=sequence.session,
    )


def report_sequences(
    membership: Membership, swaps: Swaps, leaving: Leaving, returning: Returning, admission: Admission
) -> SequenceUsage:
    states = Counter(
        sequence.state for engine in membership.engines.values() for sequence in engine.sequences.values()
    )
    return SequenceUsage(
        resident=states[RESIDENT],
        swapping_out=states[SWAPPING_OUT],
        swapped=states[SWAPPED],
        swapping_in=states[SWAPPING_IN],
        dropped=states[DROPPED],
        idle=len(leaving.idle),
        waiting=admission.waiting,
        swaps_out=swaps.out.count,
        swaps_in=swaps.into.count,
        drops=leaving.drops,
        drops_for_room=leaving.drops_for_room,
        reliefs=leaving.reliefs,
        loads_whole=returning.loads_whole,
        loads_cut=returning.loads_cut,
    )


def report_tenants(memory: Memory, admission: Admission) -> tuple[TenantUsage, ...]:
    """Who has which part of each tier; those that are named no more, where they have any of it."""
    shares = memory.shares
    if not shares.are_shared:
        return ()
    waiting = Counter(shares.place_of(domain) for domain in admission.domains_waiting())
    tiers = [tier for tier in Tier if memory.pools[tier].frame_count]
    tenants = [
        TenantUsage(
            tenant=name,
            frames=tuple(
                TenantFrames(
                    tier=tier,
                    frames_taken=int(shares.used[tier][place]),
                    frames_guaranteed=int(shares.guaranteed[tier][place]),
                )
                for tier in tiers
            ),
            sequences_waiting=waiting[place],
        )
        for place, name in enumerate(shares.names)
    ]
    return tuple(each for each in tenants if each.tenant or any(tier.frames_taken for tier in each.frames))


def _idle_frames(memory: Memory, leaving: Leaving) -> int:
    """GPU frames of blocks that only idle sequences refer to."""
    if not leaving.idle:
        return 0
    blocks = memory.blocks
    rows, counts = np.unique(concat([sequence.rows for sequence in leaving.idle]), return_counts=True)
    return int(np.count_nonzero(blocks.refs[rows] - blocks.limbo[rows] == counts))


def _tier_usage(
    memory: Memory, links: Links, tier: Tier, pressure: Pressure, quarantined: int, idle: int
) -> TierUsage:
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
        blocks_moved_in=links.transfers.blocks_moved_in[tier],
        blocks_failed=links.transfers.blocks_failed[tier],
        blocks_evicted=memory.blocks_evicted[tier],
        frames_used=int(np.count_nonzero(referred)),
        frames_limbo=int(np.count_nonzero(referred & ~blocks.held(rows))) if tier is GPU else 0,
        frames_idle=idle,
        blocks_shed=memory.blocks_shed[tier],
        blocks_ghost_hit=memory.regret.blocks_hit[tier],
    )
