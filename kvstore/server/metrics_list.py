"""The metrics that there are: what they mean, and what is read for each. docs/metrics.md is this table."""

from kvstore.server.metrics_reading import (
    Metric,
    Timing,
    block_ratio,
    by_lane,
    by_link,
    by_tier,
    engines,
    events,
    hits,
    memory_ratio,
    of_disk,
    operations,
    refusals,
    single,
    states,
)
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["METRICS"]

METRICS: tuple[Metric | Timing, ...] = (
    Metric(
        "kvstore_build_info",
        "Always 1; the version of the service is in the label.",
        lambda seen: [((seen.usage.build,), 1)],
        ("version",),
    ),
    Metric(
        "kvstore_store_epoch_info",
        "Always 1; the epoch of the store, another one after each restart, is in the label.",
        lambda seen: [((f"{seen.usage.store_epoch:016x}",), 1)],
        ("epoch",),
    ),
    single(
        "kvstore_start_time_seconds",
        "When the service started, in seconds since 1970.",
        lambda seen: seen.usage.start_time.ToNanoseconds() / 1e9,
    ),
    # Memory.
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
    # Prefix cache.
    single(
        "kvstore_sequences_admitted_total",
        "Sequences that got their first frames. Retries and returns don't count again.",
        lambda seen: seen.usage.prefix.sequences_admitted,
    ),
    single(
        "kvstore_prefix_blocks_queried_total",
        "Blocks of prompts that were looked for in the cache, at the admission of their sequence.",
        lambda seen: seen.usage.prefix.blocks_queried,
    ),
    hits(
        "kvstore_prefix_blocks_hit_total",
        "Of these the leading ones that were found, by the tier of their best copy.",
        lambda seen: 1,
    ),
    single(
        "kvstore_prefix_tokens_queried_total",
        "The same in tokens of full blocks: looked for.",
        lambda seen: seen.usage.prefix.blocks_queried * seen.usage.block_tokens,
    ),
    hits(
        "kvstore_prefix_tokens_hit_total",
        "The same in tokens of full blocks: found.",
        lambda seen: seen.usage.block_tokens,
    ),
    # Links.
    by_link("kvstore_link_transfers_total", "Transfers that were started.", lambda link: link.transfers),
    by_link(
        "kvstore_link_blocks_started_total", "Blocks that were to be moved.", lambda link: link.blocks_started
    ),
    by_link("kvstore_link_blocks_moved_total", "Blocks that arrived.", lambda link: link.blocks_moved),
    by_link(
        "kvstore_link_blocks_failed_total",
        "Blocks that did not: the call failed, or what was read was wrong.",
        lambda link: link.blocks_failed,
    ),
    by_link(
        "kvstore_link_bytes_moved_total",
        "Bytes of the blocks that arrived, on all ranks.",
        lambda link: link.bytes_moved,
    ),
    by_link(
        "kvstore_link_seconds_total",
        "Seconds from the start of each transfer to its end, waiting included; several may run at once.",
        lambda link: link.seconds,
    ),
    by_link(
        "kvstore_link_blocks_under_way", "Blocks that are being moved.", lambda link: link.blocks_under_way
    ),
    by_lane(
        "kvstore_link_blocks_waiting",
        "Blocks that wait in the store for their turn, by urgency.",
        lambda lane: lane.blocks_waiting,
    ),
    by_lane(
        "kvstore_link_transfers_under_way",
        "Transfers under way, by urgency.",
        lambda lane: lane.transfers_under_way,
    ),
    by_link(
        "kvstore_link_transfers_queued",
        "Transfers that the link has been given and has not begun the last piece of.",
        lambda link: link.transfers_queued,
    ),
    by_link(
        "kvstore_link_bytes_in_flight",
        "Bytes of transfers that the link has been given and that have not ended.",
        lambda link: link.bytes_in_flight,
    ),
    by_link(
        "kvstore_link_wait_seconds_total",
        "Seconds that transfers waited in the link for their first block.",
        lambda link: link.wait_seconds,
    ),
    by_link(
        "kvstore_link_busy_seconds_total",
        "Seconds that the link was at work, waits for its limit included.",
        lambda link: link.busy_seconds,
    ),
    by_link(
        "kvstore_link_limit_bytes_per_second",
        "The link's limit as it comes to now; 0: none.",
        lambda link: link.limit.effective_bytes_per_second,
    ),
    by_link(
        "kvstore_link_bandwidth_bytes_per_second",
        "What the link can do, as measured; 0: not known.",
        lambda link: link.rate.bandwidth_bytes_per_second,
    ),
    # Sequences and engines.
    Metric("kvstore_sequences", "Sequences by state.", states, ("state",)),
    single(
        "kvstore_sequences_idle",
        "Resident sequences that don't run: the store may move these by itself.",
        lambda seen: seen.usage.sequences.idle,
    ),
    single(
        "kvstore_sequences_waiting",
        "Sequences that wait for GPU frames.",
        lambda seen: seen.usage.sequences.waiting,
    ),
    single(
        "kvstore_swaps_out_total",
        "Sequences whose swap to the CPU tier began.",
        lambda seen: seen.usage.sequences.swaps_out,
    ),
    single(
        "kvstore_swaps_in_total",
        "Swapped sequences that got GPU frames again.",
        lambda seen: seen.usage.sequences.swaps_in,
    ),
    single(
        "kvstore_drops_total",
        "Sequences that were preempted without a swap: they are computed again.",
        lambda seen: seen.usage.sequences.drops,
    ),
    single(
        "kvstore_drops_for_room_total",
        "Of these, those that would have been swapped had there been room in the CPU tier.",
        lambda seen: seen.usage.sequences.drops_for_room,
    ),
    single(
        "kvstore_preemptions_total",
        "Sequences that the store itself moved out, by swap or drop, because others waited for frames.",
        lambda seen: seen.usage.sequences.reliefs,
    ),
    Metric("kvstore_engines", "Engines by state; expired ones still hold frames.", engines, ("state",)),
    single(
        "kvstore_sessions",
        "Chat sessions that a next turn can go on from.",
        lambda seen: seen.usage.sessions,
    ),
    single(
        "kvstore_session_keys",
        "Block keys that these name, one that two of them name counted twice.",
        lambda seen: seen.usage.session_keys,
    ),
    # Calls.
    single(
        "kvstore_steps_total",
        "Steps that were answered, unary operations and retries included.",
        lambda seen: seen.usage.steps.steps,
    ),
    Metric(
        "kvstore_operations_total",
        "Operations of these, by kind; a Grow of many sequences is one.",
        operations,
        ("kind",),
    ),
    single(
        "kvstore_sequences_grown_total",
        "Sequences that were named in a Grow.",
        lambda seen: seen.counts.sequences_grown,
    ),
    Metric("kvstore_events_total", "What entered the store, by kind.", events, ("kind",)),
    Metric("kvstore_refusals_total", "What was refused, by reason.", refusals, ("reason",)),
    Timing("kvstore_step_store_seconds", "A step's time in the store.", lambda counts: counts.store_seconds),
    Timing(
        "kvstore_step_call_seconds",
        "The same from the bytes of the request to those of the answer, gRPC aside.",
        lambda counts: counts.call_seconds,
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
    # Itself.
    single(
        "kvstore_metrics_errors_total",
        "Errors in counting and telling: figures are then too low or missing.",
        lambda seen: seen.counts.errors,
    ),
)
