"""What the store, its tiers and the service tell of themselves, as the contract's Usage."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvstore.core.types import Link, Tier, Urgency
from kvstore.core.usage import EngineUsage, LaneUsage, SequenceUsage, TenantUsage, TierUsage, Usage
from kvstore.observe.counting import Counts, LinkCounts
from kvstore.server.encode import encode_engine
from kvstore.server.encode_events import PRESSURES, TIERS
from kvstore.server.encode_memory import fill_memory
from kvstore.server.gpus import Gpus
from kvstore.server.layout import Layout
from kvstore.server.limits import LinkLimits
from kvstore.server.limits_messages import encode_rate_limit
from kvstore.server.pools import Pools
from kvstore.tiers.disk import DiskTier
from kvstore.tiers.disk_folder import FolderSize
from kvstore.tiers.link_names import LINKS
from kvstore.tiers.mover import Mover
from kvstore.tiers.pool import frame_stride_bytes
from kvstore.tiers.rates import LinkRate, LinkRates
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["Facts", "encode_usage"]

URGENCIES = {
    Urgency.ASKED: pb.URGENCY_ASKED,
    Urgency.NEEDED: pb.URGENCY_NEEDED,
    Urgency.PREFETCH: pb.URGENCY_PREFETCH,
    Urgency.BACKGROUND: pb.URGENCY_BACKGROUND,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What only the service knows. `start_wall` in seconds since 1970; no layout before the first Attach."""

    store_epoch: int
    build: str
    start_wall: float
    # By tier, as the service was started.
    bytes_configured: Mapping[Tier, int] = field(default_factory=dict)
    draining: bool = False
    disk_size: FolderSize | None = None
    layout: Layout | None = None
    disk: DiskTier | None = None
    limits: LinkLimits = field(default_factory=lambda: LinkLimits((), {}))
    rates: LinkRates = field(default_factory=LinkRates)
    movers: Mapping[Link, Mover] = field(default_factory=dict)
    pools: Pools | None = None
    gpus: Gpus | None = None


def encode_usage(usage: Usage, counts: Counts, facts: Facts) -> pb.Usage:
    message = pb.Usage(
        revision=usage.revision,
        store_epoch=facts.store_epoch,
        tiers=[_tier(tier, facts) for tier in usage.tiers],
        engines=[_engine(engine, facts.store_epoch) for engine in usage.engines],
        build=facts.build,
        sequences=_sequences(usage.sequences),
        tenants=[_tenant(tenant) for tenant in usage.tenants],
        prefix=_prefix(counts),
        sessions=usage.sessions,
        session_keys=usage.session_keys,
        links=[_link(link, usage, counts, facts) for link in _links(usage)],
        steps=_steps(counts),
        draining=facts.draining,
    )
    message.start_time.FromNanoseconds(int(facts.start_wall * 1e9))
    if facts.layout is not None:
        message.block_tokens = facts.layout.block_tokens
        message.block_bytes = facts.layout.block_bytes * facts.layout.ranks
    return message


def _tier(usage: TierUsage, facts: Facts) -> pb.TierUsage:
    message = pb.TierUsage(
        tier=TIERS[usage.tier],
        bytes_configured=facts.bytes_configured.get(usage.tier, 0),
        frames_total=usage.frames_total,
        frames_free=usage.frames_free,
        frames_cached=usage.frames_cached,
        frames_pinned=usage.frames_pinned,
        frames_quarantined=usage.frames_quarantined,
        pressure=PRESSURES[usage.pressure],
        blocks_moved_in=usage.blocks_moved_in,
        blocks_failed=usage.blocks_failed,
        blocks_evicted=usage.blocks_evicted,
        frames_used=usage.frames_used,
        frames_limbo=usage.frames_limbo,
        frames_idle=usage.frames_idle,
        frames_late=usage.frames_late,
        blocks_shed=usage.blocks_shed,
        ghost_hit_blocks=usage.blocks_ghost_hit,
    )
    if facts.layout is not None:
        message.ghost_hit_tokens = usage.blocks_ghost_hit * facts.layout.block_tokens
    fill_memory(message, usage.tier, facts.pools, facts.gpus)
    if usage.tier is Tier.DISK:
        _fill_disk(message, facts)
    elif facts.layout is not None:
        frame_bytes = frame_stride_bytes(facts.layout.block_bytes) * facts.layout.ranks
        message.bytes_total = usage.frames_total * frame_bytes
        message.bytes_used = (usage.frames_total - usage.frames_free) * frame_bytes
    return message


def _fill_disk(message: pb.TierUsage, facts: Facts) -> None:
    """The core does not know why a transfer failed."""
    message.bytes_total = message.bytes_configured
    disk = facts.disk
    if disk is None:
        return
    if facts.disk_size is not None:
        message.bytes_used = facts.disk_size.held_bytes
        message.bytes_obtainable = facts.disk_size.obtainable_bytes
    message.degraded, message.degraded_reason = disk.degraded, disk.degraded_reason
    message.bad_entries = disk.counts.bad_entries
    message.read_errors = disk.counts.read_errors
    message.write_errors = disk.counts.write_errors
    message.delete_errors = disk.counts.delete_errors
    message.late_reads = disk.counts.late_reads


def _engine(usage: EngineUsage, store_epoch: int) -> pb.EngineUsage:
    return pb.EngineUsage(
        engine=encode_engine(usage.engine, usage.state, usage.lease_expire_time, store_epoch),
        build=usage.build,
        sequences=usage.sequences,
        frames_quarantined=usage.frames_quarantined,
        peer_pids=usage.pids,
    )


def _tenant(usage: TenantUsage) -> pb.TenantUsage:
    return pb.TenantUsage(
        tenant=usage.tenant,
        frames=[
            pb.TenantFrames(
                tier=TIERS[each.tier],
                frames_taken=each.frames_taken,
                frames_guaranteed=each.frames_guaranteed,
            )
            for each in usage.frames
        ],
        sequences_waiting=usage.sequences_waiting,
    )


def _sequences(usage: SequenceUsage) -> pb.SequenceUsage:
    return pb.SequenceUsage(
        resident=usage.resident,
        swapping_out=usage.swapping_out,
        swapped=usage.swapped,
        swapping_in=usage.swapping_in,
        dropped=usage.dropped,
        idle=usage.idle,
        waiting=usage.waiting,
        swaps_out=usage.swaps_out,
        swaps_in=usage.swaps_in,
        drops=usage.drops,
        drops_for_room=usage.drops_for_room,
        reliefs=usage.reliefs,
        loads_whole=usage.loads_whole,
        loads_cut=usage.loads_cut,
    )


def _prefix(counts: Counts) -> pb.PrefixUsage:
    gpu, cpu, disk = counts.blocks_hit
    return pb.PrefixUsage(
        sequences_admitted=counts.sequences_admitted,
        blocks_queried=counts.blocks_queried,
        gpu_blocks=gpu,
        cpu_blocks=cpu,
        disk_blocks=disk,
    )


def _links(usage: Usage) -> list[Link]:
    """Those between tiers that there are."""
    tiers = {tier.tier for tier in usage.tiers}
    return [link for link in LINKS if tiers.issuperset(link)]


def _link(link: Link, usage: Usage, counts: Counts, facts: Facts) -> pb.LinkUsage:
    source, target = link
    seen = counts.links.get(link) or LinkCounts()
    block_bytes = facts.layout.block_bytes * facts.layout.ranks if facts.layout is not None else 0
    message = pb.LinkUsage(
        source=TIERS[source],
        target=TIERS[target],
        transfers=seen.transfers,
        blocks_started=seen.blocks_started,
        blocks_moved=seen.blocks_moved,
        blocks_failed=seen.blocks_failed,
        bytes_moved=seen.blocks_moved * block_bytes,
        blocks_under_way=seen.blocks_under_way,
        seconds=seen.seconds,
        lanes=[_lane(lane) for lane in usage.lanes if (lane.source, lane.target) == link],
        rate=_rate(facts.rates.rate(link)),
    )
    if link in facts.limits.by_link:
        message.limit.CopyFrom(encode_rate_limit(facts.limits, link))
    mover = facts.movers.get(link)
    if mover is not None:
        message.transfers_queued = mover.transfers_queued
        message.bytes_in_flight = mover.bytes_in_flight
        message.wait_seconds = mover.counts.wait_seconds
        message.busy_seconds = mover.counts.busy_seconds
    return message


def _lane(usage: LaneUsage) -> pb.LaneUsage:
    return pb.LaneUsage(
        urgency=URGENCIES[usage.urgency],
        blocks_waiting=usage.blocks_waiting,
        transfers_under_way=usage.transfers_under_way,
    )


def _rate(rate: LinkRate) -> pb.LinkRate:
    if not rate.is_known:
        return pb.LinkRate()
    return pb.LinkRate(
        bandwidth_bytes_per_second=rate.bandwidth_bytes_per_second,
        fixed_seconds=rate.fixed_seconds,
        samples=rate.samples,
        concurrent=rate.concurrent,
        both_ways_share=rate.both_ways_share,
    )


def _steps(counts: Counts) -> pb.StepUsage:
    return pb.StepUsage(
        steps=counts.store_seconds.count,
        operations=counts.operation_count,
        store_seconds=counts.store_seconds.sum,
        call_seconds=counts.call_seconds.sum,
    )
