"""The server's figures for Prometheus: requests, tokens, how long they took, what is under way, and what the
engine does with its memory.

docs/engine.md lists them. Tests: tests/engine/server/test_app.py.
"""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from engine.figures import Figures
from engine.server.asked import Usage

__all__ = ["Metrics"]

# Fields of `Figures`, and what they are.
GAUGES = {
    "kv_tokens_capacity": "Tokens that the KV memory of the GPU tier, or of the process, has room for.",
    "kv_tokens_held": "Room in frames that requests hold, in tokens, each frame counted once.",
    "kv_tokens_live": "Tokens in these frames whose KV is written, shared ones once.",
    "requests_running": "Sequences with memory on the GPU.",
    "requests_waiting": "Sequences that wait for memory, or for their turn.",
}
TOTALS = {
    "prompt_tokens_computed": "Tokens fed to the model in prefill.",
    "preemptions": "Sequences swapped out or dropped for want of room.",
    "steps": "Forward passes.",
}
SECONDS = (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)


class Metrics:
    """In a registry of its own, so that two servers in one process don't add up."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "kvstore_engine_requests",
            "Requests that have ended, by path and HTTP status; 499: the client had gone.",
            ("path", "status"),
            registry=self.registry,
        )
        self._prompt_tokens = Counter(
            "kvstore_engine_prompt_tokens", "Tokens of prompts of answered requests.", registry=self.registry
        )
        self._cached_tokens = Counter(
            "kvstore_engine_cached_tokens", "Of these, tokens found in the cache.", registry=self.registry
        )
        self._completion_tokens = Counter(
            "kvstore_engine_completion_tokens", "Tokens of answers.", registry=self.registry
        )
        self._first_token = Histogram(
            "kvstore_engine_first_token_seconds",
            "From a request's arrival to its first token.",
            buckets=SECONDS,
            registry=self.registry,
        )
        self._whole = Histogram(
            "kvstore_engine_request_seconds",
            "From a request's arrival to its last token.",
            buckets=SECONDS,
            registry=self.registry,
        )

    def watch_engine(self, read: Callable[[], Figures]) -> None:
        """Its memory, all figures as they were at one moment."""
        self.registry.register(_EngineFigures(read))

    def watch(self, name: str, text: str, read: Callable[[], float]) -> None:
        """A figure that is read when it is asked for."""
        Gauge(f"kvstore_engine_{name}", text, registry=self.registry).set_function(read)

    def note_request(self, path: str, status: int) -> None:
        self._requests.labels(path, str(status)).inc()

    def note_first_token(self, seconds: float) -> None:
        self._first_token.observe(seconds)

    def note_usage(self, usage: Usage, seconds: float) -> None:
        self._whole.observe(seconds)
        self._prompt_tokens.inc(usage.prompt_tokens)
        self._cached_tokens.inc(usage.cached_tokens)
        self._completion_tokens.inc(usage.completion_tokens)

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _EngineFigures(Collector):
    def __init__(self, read: Callable[[], Figures]) -> None:
        self._read = read

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        figures = self._read()
        for name, text in GAUGES.items():
            yield GaugeMetricFamily(f"kvstore_engine_{name}", text, getattr(figures, name))
        for name, text in TOTALS.items():
            yield CounterMetricFamily(f"kvstore_engine_{name}", text, getattr(figures, name))
