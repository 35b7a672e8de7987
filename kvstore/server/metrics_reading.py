"""How metrics are read off what is seen at a scrape: one value, or one a tier, link, lane, state or kind.

Labels have few values that are known in advance: an operator's tenants, but never the name of a session, a
sequence or an engine.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family

from kvstore.core.events import Event
from kvstore.core.operations import Operation
from kvstore.observe.counting import Counts, Histogram
from kvstore.v1 import kvstore_pb2 as pb

__all__ = [
    "Metric",
    "Seen",
    "Timing",
    "block_ratio",
    "by_lane",
    "by_link",
    "by_tenant",
    "by_tier",
    "engines",
    "events",
    "hits",
    "memory_ratio",
    "of_disk",
    "operations",
    "refusals",
    "single",
    "states",
    "waiting",
]

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


def single(name: str, help: str, get: Callable[[Seen], float]) -> Metric:
    return Metric(name, help, lambda seen: [((), get(seen))])


def by_tier(name: str, help: str, get: Callable[[pb.TierUsage], float]) -> Metric:
    return Metric(
        name, help, lambda seen: [((_tier(each.tier),), get(each)) for each in seen.usage.tiers], ("tier",)
    )


def by_link(name: str, help: str, get: Callable[[pb.LinkUsage], float]) -> Metric:
    return Metric(
        name, help, lambda seen: [((_link(each),), get(each)) for each in seen.usage.links], ("link",)
    )


def by_lane(name: str, help: str, get: Callable[[pb.LaneUsage], float]) -> Metric:
    def read(seen: Seen) -> Iterator[Sample]:
        for link in seen.usage.links:
            for lane in link.lanes:
                yield (_link(link), pb.Urgency.Name(lane.urgency).removeprefix("URGENCY_").lower()), get(lane)

    return Metric(name, help, read, ("link", "urgency"))


def by_tenant(name: str, help: str, get: Callable[[pb.TenantFrames], float]) -> Metric:
    """Of each tier; only where there are several tenants."""

    def read(seen: Seen) -> Iterator[Sample]:
        for tenant in seen.usage.tenants:
            for frames in tenant.frames:
                yield (_tier(frames.tier), tenant.tenant), get(frames)

    return Metric(name, help, read, ("tier", "tenant"))


def waiting(seen: Seen) -> Iterator[Sample]:
    for tenant in seen.usage.tenants:
        yield (tenant.tenant,), tenant.sequences_waiting


def of_disk(name: str, help: str, get: Callable[[pb.TierUsage], float]) -> Metric:
    """Only where there is a disk tier."""
    return Metric(
        name, help, lambda seen: [((), get(each)) for each in seen.usage.tiers if each.tier == pb.TIER_DISK]
    )


def hits(name: str, help: str, size: Callable[[Seen], int]) -> Metric:
    """Of the prefix cache, times the size of a block."""

    def read(seen: Seen) -> Iterator[Sample]:
        prefix, each = seen.usage.prefix, size(seen)
        found = {"gpu": prefix.gpu_blocks, "cpu": prefix.cpu_blocks, "disk": prefix.disk_blocks}
        for tier in seen.usage.tiers:
            yield (_tier(tier.tier),), found[_tier(tier.tier)] * each

    return Metric(name, help, read, ("tier",))


def memory_ratio(tier: pb.TierUsage) -> float:
    return tier.bytes_used / tier.bytes_total if tier.bytes_total else 0.0


def block_ratio(tier: pb.TierUsage) -> float:
    """What runs, or is claimed by what was swapped out: not what only waits, rests or is quarantined."""
    reserved = tier.frames_limbo + tier.frames_idle + tier.frames_quarantined
    return max(0, tier.frames_used - reserved) / tier.frames_total if tier.frames_total else 0.0


def states(seen: Seen) -> Iterator[Sample]:
    for state in ("resident", "swapping_out", "swapped", "swapping_in", "dropped"):
        yield (state,), getattr(seen.usage.sequences, state)


def engines(seen: Seen) -> Iterator[Sample]:
    states = [engine.engine.state for engine in seen.usage.engines]
    for name in ("attached", "expired"):
        yield (name,), states.count(pb.Engine.State.Value(name.upper()))


def operations(seen: Seen) -> Iterator[Sample]:
    for kind in get_args(Operation):
        yield (_kind(kind),), seen.counts.operations.get(kind, 0)


def events(seen: Seen) -> Iterator[Sample]:
    for kind in get_args(Event):
        yield (_kind(kind),), seen.counts.events.get(kind, 0)


def refusals(seen: Seen) -> Iterator[Sample]:
    for reason, count in seen.counts.refusals.items():
        yield (reason.lower(),), count


def _tier(tier: pb.Tier.ValueType) -> str:
    return pb.Tier.Name(tier).removeprefix("TIER_").lower()


def _link(link: pb.LinkUsage) -> str:
    return f"{_tier(link.source)}_to_{_tier(link.target)}"


def _kind(kind: type) -> str:
    """AllocateResult: allocate_result."""
    return "".join(f"_{each.lower()}" if each.isupper() else each for each in kind.__name__).lstrip("_")
