"""The metrics for Prometheus: a registry of their own, and its text.

All of it comes out of the service's own usage report and the counts beside the store, at the moment of a
scrape. Which metrics there are stands in `metrics_list.py`, how each is read in `metrics_reading.py`.
"""

import logging
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from kvstore.server.metrics_list import METRICS
from kvstore.server.metrics_reading import Metric, Seen, Timing

__all__ = ["Exposition"]

log = logging.getLogger(__name__)


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
