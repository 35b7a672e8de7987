"""Sizes and rounds of the cases that are timed inside another engine's allocator (`reference_process.py`)."""

from collections.abc import Callable
from statistics import median
from time import perf_counter

__all__ = ["BATCH", "BLOCKS", "BLOCK_TOKENS", "PROMPT_TOKENS", "Case", "median_of"]

BLOCK_TOKENS = 16
BLOCKS = 131_072
PROMPT_TOKENS = 4_096
BATCH = 256
SECONDS_PER_ROUND = 0.3

# One round: its median seconds.
Case = Callable[[], float]


def median_of(once: Callable[[], float]) -> float:
    samples: list[float] = []
    end = perf_counter() + SECONDS_PER_ROUND
    while len(samples) < 3 or perf_counter() < end:
        samples.append(once())
    return median(samples[len(samples) // 10 :])
