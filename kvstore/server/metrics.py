"""The metrics for Prometheus: their names, what they mean, and where each is read off.

All of it comes out of the service's own usage report and the counts beside the store, at the moment of a
scrape. Labels have few values that are known in advance: never a session's, a sequence's or an engine's name.
docs/metrics.md is this table, in words.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import get_args

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from kvstore.core.events import Event, Operation
from kvstore.observe.counting import Counts, Histogram
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["METRICS", "Exposition", "Metric", "Seen"]

log = logging.getLogger(__name__)

Sample = tuple[tuple[str, ...], float]


@dataclass(frozen=True, slots=True)
class Seen:
    """What is read off at a scrape."""

    usage: pb.Usage
    counts: Counts


@dataclass(frozen=True, slots=True)
class Metric:
    """`read` gives a value for each set of label values. A counter's name ends in _total."""

    name: str
    help: str
    read: Callable[[Seen], Iterable[Sample]]
    labels: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        return "counter" if self.name.endswith("_total") else "gauge"

    def family(self, seen: Seen) -> Family:
        make = CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily
        family = make(self.name.removesuffix("_total"), self.help, labels=self.labels)
        for labels, value in self.read(seen):
            family.add_metric(labels, value)
        return family


@dataclass(frozen=True, slots=True)
class Timing:
    """A histogram of seconds, without labels."""

    name: str
    help: str
    of: Callable[[Counts], Histogram]
    labels: tuple[str, ...] = ()
    kind: str = "histogram"

    def family(self, seen: Seen) -> Family:
        histogram = self.of(seen.counts)
        bounds = [*map(repr, histogram.bounds), "+Inf"]
        buckets = list(zip(bounds, accumulate(histogram.counts), strict=True))
        family = HistogramMetricFamily(self.name, self.help)
        family.add_metric((), buckets, sum_value=histogram.sum)
        return family


# ------------------------------------------------------------------- how values are read


def _one(get: Callable[[Seen], float]) -> Callable[[Seen], Iterable[Sample]]:
    return lambda seen: [((), get(seen))]


def _by_tier(get: Callable[[pb.TierUsage], float]) -> Callable[[Seen], Iterable[Sample]]:
    return lambda seen: [((_tier(tier.tier),), get(tier)) for tier in seen.usage.tiers]


def _by_link(get: Callable[[pb.LinkUsage], float]) -> Callable[[Seen], Iterable[Sample]]:
    return lambda seen: [
        ((f"{_tier(link.source)}_to_{_tier(link.target)}",), get(link)) for link in seen.usage.links
    ]


def _of_disk(get: Callable[[pb.TierUsage], float]) -> Callable[[Seen], Iterable[Sample]]:
    return lambda seen: [((), get(tier)) for tier in seen.usage.tiers if tier.tier == pb.TIER_DISK]


def _tier(tier: pb.Tier.ValueType) -> str:
    return pb.Tier.Name(tier).removeprefix("TIER_").lower()


def _kind(kind: type) -> str:
    """AllocateResult: allocate_result."""
    return "".join(f"_{each.lower()}" if each.isupper() else each for each in kind.__name__).lstrip("_")


def _memory_ratio(tier: pb.TierUsage) -> float:
    return tier.bytes_used / tier.bytes_total if tier.bytes_total else 0.0


def _block_ratio(tier: pb.TierUsage) -> float:
    """What runs, or is claimed by what was swapped out: not what only waits, rests or is quarantined."""
    reserved = tier.frames_limbo + tier.frames_idle + tier.frames_quarantined
    return max(0, tier.frames_used - reserved) / tier.frames_total if tier.frames_total else 0.0


def _hits(size: Callable[[Seen], int]) -> Callable[[Seen], Iterable[Sample]]:
    def read(seen: Seen) -> Iterator[Sample]:
        prefix, each = seen.usage.prefix, size(seen)
        hits = {"gpu": prefix.gpu_blocks, "cpu": prefix.cpu_blocks, "disk": prefix.disk_blocks}
        for tier in seen.usage.tiers:
            yield (_tier(tier.tier),), hits[_tier(tier.tier)] * each

    return read


def _states(seen: Seen) -> Iterator[Sample]:
    for state in ("resident", "swapping_out", "swapped", "swapping_in", "dropped"):
        yield (state,), getattr(seen.usage.sequences, state)


def _engines(seen: Seen) -> Iterator[Sample]:
    states = [engine.engine.state for engine in seen.usage.engines]
    for name in ("attached", "expired"):
        yield (name,), states.count(pb.Engine.State.Value(name.upper()))


def _operations(seen: Seen) -> Iterator[Sample]:
    for kind in get_args(Operation):
        yield (_kind(kind),), seen.counts.operations.get(kind, 0)


def _events(seen: Seen) -> Iterator[Sample]:
    for kind in get_args(Event):
        yield (_kind(kind),), seen.counts.events.get(kind, 0)


def _refusals(seen: Seen) -> Iterator[Sample]:
    for reason, count in seen.counts.refusals.items():
        yield (reason.lower(),), count


# ---------------------------------------------------------------------------- the metrics

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
    Metric(
        "kvstore_start_time_seconds",
        "When the service started, in seconds since 1970.",
        _one(lambda seen: seen.usage.start_time.ToNanoseconds() / 1e9),
    ),
    # Memory.
    Metric(
        "kvstore_memory_bytes",
        "What a tier may take: the memory of its pool, or the cap of the disk.",
        _by_tier(lambda tier: tier.bytes_total),
        ("tier",),
    ),
    Metric(
        "kvstore_memory_used_bytes",
        "What a tier takes: frames that are not free, or all that the disk's folder holds.",
        _by_tier(lambda tier: tier.bytes_used),
        ("tier",),
    ),
    Metric(
        "kvstore_memory_usage_ratio",
        "Share of a tier's bytes that is taken, cache that can be given up included.",
        _by_tier(_memory_ratio),
        ("tier",),
    ),
    Metric(
        "kvstore_block_usage_ratio",
        "Share of a tier's frames that sequences have a use for now: neither cache nor limbo, idle or "
        "quarantined.",
        _by_tier(_block_ratio),
        ("tier",),
    ),
    Metric("kvstore_frames", "Frames of a tier.", _by_tier(lambda tier: tier.frames_total), ("tier",)),
    Metric("kvstore_frames_free", "Empty frames.", _by_tier(lambda tier: tier.frames_free), ("tier",)),
    Metric(
        "kvstore_frames_cached",
        "Frames of blocks that no sequence refers to: they can be given up.",
        _by_tier(lambda tier: tier.frames_cached),
        ("tier",),
    ),
    Metric(
        "kvstore_frames_used",
        "Frames of blocks that sequences refer to, those that run and those that wait.",
        _by_tier(lambda tier: tier.frames_used),
        ("tier",),
    ),
    Metric(
        "kvstore_frames_limbo",
        "Used frames that were given up and wait for work on the GPU to complete.",
        _by_tier(lambda tier: tier.frames_limbo),
        ("tier",),
    ),
    Metric(
        "kvstore_frames_idle",
        "Used frames of sequences alone that are resident and don't run.",
        _by_tier(lambda tier: tier.frames_idle),
        ("tier",),
    ),
    Metric(
        "kvstore_frames_quarantined",
        "Frames of expired engines whose processes may still write to them.",
        _by_tier(lambda tier: tier.frames_quarantined),
        ("tier",),
    ),
    Metric(
        "kvstore_frames_pinned",
        "Frames that transfers read or fill just now.",
        _by_tier(lambda tier: tier.frames_pinned),
        ("tier",),
    ),
    Metric(
        "kvstore_pressure",
        "How short of room a tier is. 0: low, 1: above the high watermark, 2: somebody waits.",
        _by_tier(lambda tier: tier.pressure - pb.PRESSURE_LOW),
        ("tier",),
    ),
    Metric(
        "kvstore_degraded",
        "1 while a tier takes no writes because they fail; kvstore status says why.",
        _by_tier(lambda tier: tier.degraded),
        ("tier",),
    ),
    Metric(
        "kvstore_blocks_evicted_total",
        "Cached blocks that were taken out of a tier to make room or because they were discarded.",
        _by_tier(lambda tier: tier.blocks_evicted),
        ("tier",),
    ),
    # Prefix cache.
    Metric(
        "kvstore_sequences_admitted_total",
        "Sequences that got their first frames. Retries and returns don't count again.",
        _one(lambda seen: seen.usage.prefix.sequences_admitted),
    ),
    Metric(
        "kvstore_prefix_blocks_queried_total",
        "Blocks of prompts that were looked for in the cache, at the admission of their sequence.",
        _one(lambda seen: seen.usage.prefix.blocks_queried),
    ),
    Metric(
        "kvstore_prefix_blocks_hit_total",
        "Of these the leading ones that were found, by the tier of their best copy.",
        _hits(lambda seen: 1),
        ("tier",),
    ),
    Metric(
        "kvstore_prefix_tokens_queried_total",
        "The same in tokens of full blocks: looked for.",
        _one(lambda seen: seen.usage.prefix.blocks_queried * seen.usage.block_tokens),
    ),
    Metric(
        "kvstore_prefix_tokens_hit_total",
        "The same in tokens of full blocks: found.",
        _hits(lambda seen: seen.usage.block_tokens),
        ("tier",),
    ),
    # Links.
    Metric(
        "kvstore_link_transfers_total",
        "Transfers that were started.",
        _by_link(lambda link: link.transfers),
        ("link",),
    ),
    Metric(
        "kvstore_link_blocks_started_total",
        "Blocks that were to be moved.",
        _by_link(lambda link: link.blocks_started),
        ("link",),
    ),
    Metric(
        "kvstore_link_blocks_moved_total",
        "Blocks that arrived.",
        _by_link(lambda link: link.blocks_moved),
        ("link",),
    ),
    Metric(
        "kvstore_link_blocks_failed_total",
        "Blocks that did not: the call failed, or what was read was wrong.",
        _by_link(lambda link: link.blocks_failed),
        ("link",),
    ),
    Metric(
        "kvstore_link_bytes_moved_total",
        "Bytes of the blocks that arrived, on all ranks.",
        _by_link(lambda link: link.bytes_moved),
        ("link",),
    ),
    Metric(
        "kvstore_link_seconds_total",
        "Seconds from the start of each transfer to its end, waiting included; several may run at once.",
        _by_link(lambda link: link.seconds),
        ("link",),
    ),
    Metric(
        "kvstore_link_blocks_under_way",
        "Blocks that are being moved.",
        _by_link(lambda link: link.blocks_under_way),
        ("link",),
    ),
    # Sequences and engines.
    Metric("kvstore_sequences", "Sequences by state.", _states, ("state",)),
    Metric(
        "kvstore_sequences_idle",
        "Resident sequences that don't run: the store may move these by itself.",
        _one(lambda seen: seen.usage.sequences.idle),
    ),
    Metric(
        "kvstore_sequences_waiting",
        "Sequences that wait for GPU frames.",
        _one(lambda seen: seen.usage.sequences.waiting),
    ),
    Metric(
        "kvstore_swaps_out_total",
        "Sequences whose swap to the CPU tier began.",
        _one(lambda seen: seen.usage.sequences.swaps_out),
    ),
    Metric(
        "kvstore_swaps_in_total",
        "Swapped sequences that got GPU frames again.",
        _one(lambda seen: seen.usage.sequences.swaps_in),
    ),
    Metric(
        "kvstore_drops_total",
        "Sequences that were preempted without a swap: they are computed again.",
        _one(lambda seen: seen.usage.sequences.drops),
    ),
    Metric(
        "kvstore_drops_for_room_total",
        "Of these, those that would have been swapped had there been room in the CPU tier.",
        _one(lambda seen: seen.usage.sequences.drops_for_room),
    ),
    Metric(
        "kvstore_preemptions_total",
        "Sequences that the store itself moved out, by swap or drop, because others waited for frames.",
        _one(lambda seen: seen.usage.sequences.reliefs),
    ),
    Metric("kvstore_engines", "Engines by state; expired ones still hold frames.", _engines, ("state",)),
    # Calls.
    Metric(
        "kvstore_steps_total",
        "Steps that were answered, unary operations and retries included.",
        _one(lambda seen: seen.usage.steps.steps),
    ),
    Metric(
        "kvstore_operations_total",
        "Operations of these, by kind; a Grow of many sequences is one.",
        _operations,
        ("kind",),
    ),
    Metric(
        "kvstore_sequences_grown_total",
        "Sequences that were named in a Grow.",
        _one(lambda seen: seen.counts.sequences_grown),
    ),
    Metric("kvstore_events_total", "What entered the store, by kind.", _events, ("kind",)),
    Metric("kvstore_refusals_total", "What was refused, by reason.", _refusals, ("reason",)),
    Timing("kvstore_step_store_seconds", "A step's time in the store.", lambda counts: counts.store_seconds),
    Timing(
        "kvstore_step_call_seconds",
        "The same from the bytes of the request to those of the answer, gRPC aside.",
        lambda counts: counts.call_seconds,
    ),
    # The disk.
    Metric(
        "kvstore_disk_bad_entries_total",
        "Entries on disk that were wrong and so were dropped.",
        _of_disk(lambda tier: tier.bad_entries),
    ),
    Metric(
        "kvstore_disk_read_errors_total",
        "Calls that failed when reading.",
        _of_disk(lambda tier: tier.read_errors),
    ),
    Metric(
        "kvstore_disk_write_errors_total",
        "Batches that could not be written.",
        _of_disk(lambda tier: tier.write_errors),
    ),
    Metric(
        "kvstore_disk_delete_errors_total",
        "Deletes that failed; they are tried again.",
        _of_disk(lambda tier: tier.delete_errors),
    ),
    Metric(
        "kvstore_blocks_deleted_total",
        "Blocks that the disk was told to forget.",
        _one(lambda seen: seen.counts.blocks_deleted),
    ),
    # Itself.
    Metric(
        "kvstore_metrics_errors_total",
        "Errors in counting and telling: figures are then too low or missing.",
        _one(lambda seen: seen.counts.errors),
    ),
)


class Exposition(Collector):
    """A registry of its own, and its text. `look` is asked once a scrape, on the caller's thread."""

    def __init__(self, look: Callable[[], Seen], metrics: tuple[Metric | Timing, ...] = METRICS) -> None:
        self._look = look
        self._metrics = metrics
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def describe(self) -> list[Family]:
        """So that nothing is looked at when the registry is made."""
        return []

    def collect(self) -> Iterator[Family]:
        """A metric that can't be read is left out and counted: the others are told."""
        seen = self._look()
        for metric in self._metrics:
            try:
                family = metric.family(seen)
            except Exception:
                seen.counts.errors += 1
                log.exception("%s can't be told", metric.name)
                continue
            yield family
