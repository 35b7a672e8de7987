"""Metrics of the work that engines have done: prefixes found, sequences moved, calls answered."""

from kvstore.server.metrics_reading import (
    Metric,
    Timing,
    engines,
    events,
    hits,
    operations,
    refusals,
    single,
    states,
)

__all__ = ["OF_WORK"]

OF_WORK: tuple[Metric | Timing, ...] = (
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
    single(
        "kvstore_loads_whole_total",
        "Sequences that came in with all that was found below the GPU, where it was weighed what to load.",
        lambda seen: seen.usage.sequences.loads_whole,
    ),
    single(
        "kvstore_loads_cut_total",
        "Those that came in with its head alone, or nothing of it, for to compute the rest was cheaper.",
        lambda seen: seen.usage.sequences.loads_cut,
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
)
