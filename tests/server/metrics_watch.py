"""Metrics looked at now and then: what has moved, and which of them move only by hand."""

from collections.abc import Callable

from kvstore.server.metrics_list import METRICS
from tests.server.harness import until
from tests.server.scraping import Samples

__all__ = ["BY_HAND", "ON_GPUS", "SET", "Watch"]

# What is over in no time in the real service, or can't be had on purpose: seen in a world by hand.
BY_HAND = {
    "kvstore_blocks_shed_total",
    "kvstore_degraded",
    "kvstore_disk_bad_entries_total",
    "kvstore_disk_delete_errors_total",
    "kvstore_disk_late_reads_total",
    "kvstore_disk_read_errors_total",
    "kvstore_disk_write_errors_total",
    "kvstore_frames_late",
    "kvstore_ghost_blocks_hit_total",
    "kvstore_ghost_tokens_hit_total",
    "kvstore_link_blocks_failed_total",
    "kvstore_link_blocks_waiting",
    "kvstore_loads_cut_total",
    "kvstore_loads_whole_total",
    "kvstore_metrics_errors_total",
    "kvstore_tenant_frames",
    "kvstore_tenant_sequences_waiting",
}
# What was set at the start, where there are several tenants.
SET = {"kvstore_tenant_frames_guaranteed"}

# Seen where there are GPUs: `tests/cuda/test_service.py`.
ON_GPUS = {"kvstore_copy_stalled_seconds", "kvstore_pinned_bytes"}


class Watch:
    """Scrapes now and then, and keeps the names of what was ever another than at the first time."""

    def __init__(self, take: Callable[[], Samples]) -> None:
        self._take = take
        self.first = self.now = take()
        self.moved: set[str] = set()

    def look(self) -> Samples:
        now = self._take()
        for name, value in now.items():
            # Counters only ever go up; so do the counts and sums of histograms.
            if "_total" in name or "_bucket" in name:
                assert value >= self.now.get(name, 0), name
            if value != self.first.get(name, 0):
                self.moved.add(name)
        self.now = now
        return now

    def until(self, good: Callable[[Samples], bool]) -> Samples:
        return until(self.look, good)

    def metrics(self) -> set[str]:
        names = {name.partition("{")[0] for name in self.moved}
        return {metric.name for metric in METRICS if {metric.name, f"{metric.name}_count"} & names}
