"""The metrics that there are: what they mean, and what is read for each. docs/metrics.md is this table.

Those of the service itself are here.
"""

from kvstore.server.metrics_links import OF_LINKS
from kvstore.server.metrics_reading import Metric, Timing, single
from kvstore.server.metrics_tiers import OF_TIERS
from kvstore.server.metrics_work import OF_WORK

__all__ = ["METRICS"]

OF_SERVICE: tuple[Metric, ...] = (
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
    single(
        "kvstore_draining",
        "1 while the service is drained before a restart: it takes no new work.",
        lambda seen: seen.usage.draining,
    ),
    single(
        "kvstore_metrics_errors_total",
        "Errors in counting and telling: figures are then too low or missing.",
        lambda seen: seen.counts.errors,
    ),
)

METRICS: tuple[Metric | Timing, ...] = (*OF_SERVICE, *OF_TIERS, *OF_WORK, *OF_LINKS)
