"""Metrics as Prometheus takes them: one request, and its samples."""

import http.client
import re
import time
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from kvstore.server.metrics_http import FRESH_SECONDS
from tests.server.harness import DEADLINE_SECONDS, Service

__all__ = ["Samples", "get", "parse", "port_of", "scrape"]

# By name and sorted labels: kvstore_frames{tier="gpu"}.
Samples = dict[str, float]


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    text: str


def port_of(service: Service) -> int:
    [port] = re.findall(r"metrics on http://127\.0\.0\.1:([0-9]+)/metrics", service.log)
    return int(port)


def get(port: int, path: str, method: str = "GET", **headers: str) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_SECONDS)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return Answer(answer.status, dict(answer.getheaders()), answer.read().decode())
    finally:
        connection.close()


def parse(text: str) -> Samples:
    """Counters and gauges, and of histograms all their samples."""
    samples: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
            name = f"{sample.name}{{{labels}}}" if labels else sample.name
            assert name not in samples, f"{name} is there twice"
            samples[name] = sample.value
    return samples


def scrape(service: Service) -> Samples:
    """The figures as they are now, and not those of a scrape just before."""
    time.sleep(FRESH_SECONDS)
    answer = get(port_of(service), "/metrics")
    assert answer.status == 200
    return parse(answer.text)
