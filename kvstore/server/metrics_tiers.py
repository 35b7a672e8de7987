"""Metrics of the tiers: what they hold, how full they are, and how the disk does."""

from kvstore.server.metrics_reading import (
    Metric,
    block_ratio,
    by_tenant,
    by_tier,
    memory_ratio,
    of_disk,
    single,
    waiting,
)
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["OF_TIERS"]

OF_TIERS: tuple[Metric, ...] = (
    by_tier(
        "kvstore_memory_bytes",
        "What a tier may take: the memory of its pool, or the cap of the disk.",
        lambda tier: tier.bytes_total,
    ),
    by_tier(
        "kvstore_memory_used_bytes",
        "What a tier takes: frames that are not free, or all that the disk's folder holds.",
        lambda tier: tier.bytes_used,
    ),
    by_tier(
        "kvstore_memory_usage_ratio",
        "Share of a tier's bytes that is taken, cache that can be given up included.",
        memory_ratio,
    ),
    by_tier(
        "kvstore_block_usage_ratio",
        "Share of a tier's frames that sequences have a use for now: neither cache nor limbo, idle or "
        "quarantined.",
        block_ratio,
    ),
    by_tier("kvstore_frames", "Frames of a tier.", lambda tier: tier.frames_total),
    by_tier("kvstore_frames_free", "Empty frames.", lambda tier: tier.frames_free),
    by_tier(
        "kvstore_frames_cached",
        "Frames of blocks that no sequence refers to: they can be given up.",
        lambda tier: tier.frames_cached,
    ),
    by_tier(
        "kvstore_frames_used",
        "Frames of blocks that sequences refer to, those that run and those that wait.",
        lambda tier: tier.frames_used,
    ),
    by_tier(
        "kvstore_frames_limbo",
        "Used frames that were given up and wait for work on the GPU to complete.",
        lambda tier: tier.frames_limbo,
    ),
    by_tier(
        "kvstore_frames_idle",
        "Used frames of sequences alone that are resident and don't run.",
        lambda tier: tier.frames_idle,
    ),
    by_tier(
        "kvstore_frames_quarantined",
        "Frames of expired engines whose processes may still write to them.",
        lambda tier: tier.frames_quarantined,
    ),
    by_tier(
        "kvstore_frames_late",
        "Frames that nobody can have: a read that was late may still fill them.",
        lambda tier: tier.frames_late,
    ),
    by_tier(
        "kvstore_frames_pinned",
        "Frames that transfers read or fill just now.",
        lambda tier: tier.frames_pinned,
    ),
    by_tier(
        "kvstore_pinned_bytes",
        "Host memory that a GPU copies to and from by itself: all of the CPU tier, once it is pinned.",
        lambda tier: tier.bytes_pinned,
    ),
    by_tier(
        "kvstore_copy_stalled_seconds",
        "For how long a copy that has a GPU's stream to itself has been waited for.",
        lambda tier: tier.copy_stalled_seconds,
    ),
    by_tier(
        "kvstore_pressure",
        "How short of room a tier is. 0: low, 1: above the high watermark, 2: somebody waits.",
        lambda tier: tier.pressure - pb.PRESSURE_LOW,
    ),
    by_tier(
        "kvstore_degraded",
        "1 while a tier takes no writes because they fail; kvstore status says why.",
        lambda tier: tier.degraded,
    ),
    by_tier(
        "kvstore_blocks_evicted_total",
        "Cached blocks that were taken out of a tier to make room or because they were discarded.",
        lambda tier: tier.blocks_evicted,
    ),
    by_tier(
        "kvstore_blocks_shed_total",
        "Blocks that were not brought to a tier though it was wished for, for want of room or time; of the "
        "disk also those that were forgotten before they came there.",
        lambda tier: tier.blocks_shed,
    ),
    by_tier(
        "kvstore_ghost_blocks_hit_total",
        "Blocks that prompts asked for, nobody had, and a tier twice as large would have had.",
        lambda tier: tier.ghost_hit_blocks,
    ),
    by_tier(
        "kvstore_ghost_tokens_hit_total",
        "The same in tokens.",
        lambda tier: tier.ghost_hit_tokens,
    ),
    # Where there are several tenants.
    by_tenant(
        "kvstore_tenant_frames",
        "Frames of a tenant's blocks, cached ones included. An empty name: all who are named no more.",
        lambda frames: frames.frames_taken,
    ),
    by_tenant(
        "kvstore_tenant_frames_guaranteed",
        "Frames that others don't take from a tenant: its share of the tier. More than these are lent.",
        lambda frames: frames.frames_guaranteed,
    ),
    Metric(
        "kvstore_tenant_sequences_waiting",
        "Sequences of a tenant that have a place in the queue for GPU frames.",
        waiting,
        ("tenant",),
    ),
    # The disk.
    of_disk(
        "kvstore_disk_bad_entries_total",
        "Entries on disk that were wrong and so were dropped.",
        lambda tier: tier.bad_entries,
    ),
    of_disk(
        "kvstore_disk_read_errors_total", "Calls that failed when reading.", lambda tier: tier.read_errors
    ),
    of_disk(
        "kvstore_disk_late_reads_total",
        "Of these, reads that had not returned at their deadline.",
        lambda tier: tier.late_reads,
    ),
    of_disk(
        "kvstore_disk_write_errors_total",
        "Batches that could not be written.",
        lambda tier: tier.write_errors,
    ),
    of_disk(
        "kvstore_disk_delete_errors_total",
        "Deletes that failed; they are tried again.",
        lambda tier: tier.delete_errors,
    ),
    single(
        "kvstore_blocks_deleted_total",
        "Blocks that the disk was told to forget.",
        lambda seen: seen.counts.blocks_deleted,
    ),
)
