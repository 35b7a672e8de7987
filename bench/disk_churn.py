"""What a durable put takes in a full tier that has lived on, over what it took while the tier was filled."""

import random
import time
from collections.abc import Iterator

import numpy as np

from bench.disk_tier import TierBench, bench_folder, bench_tier
from bench.report import Row, make_row
from kvstore.core.types import StoredKey
from kvstore.tiers.pool import HostPool

__all__ = ["churn"]

CAP_BYTES = 64 << 20
BLOCK_BYTES = 64 << 10
# Blocks of a turn, at most.
TURN = 8
TIMES = 20
# Late: what is written from here on, in times of the cap.
LATE = 16


def churn(rounds: int) -> list[Row]:
    fresh, late = [], []
    for seed in range(rounds):
        with (
            bench_folder() as folder,
            HostPool("cpu", TURN, BLOCK_BYTES, 1) as pool,
            bench_tier(folder, pool, cap_bytes=CAP_BYTES) as bench,
        ):
            capacity = bench.tier.capacity_blocks(BLOCK_BYTES, 1)
            puts = list(_puts(bench, capacity, random.Random(seed)))
            fresh.append(_p99([ms for written, ms in puts if written < capacity]))
            late.append(_p99([ms for written, ms in puts if written >= LATE * capacity]))
    name = f"put of 1 to {TURN} blocks of {BLOCK_BYTES >> 10} KiB, p99: after {LATE} to {TIMES} times the cap"
    return [make_row(f"{name}, over fresh", "ms", late, reference=fresh, ratio_at_most=3)]


def _puts(bench: TierBench, capacity: int, chance: random.Random) -> Iterator[tuple[int, float]]:
    """Blocks written before it, and the milliseconds of each put. Turns of any session go, whole."""
    turns: list[list[StoredKey]] = []
    written = held = 0
    while written < TIMES * capacity:
        count = chance.randint(1, TURN)
        gone: list[StoredKey] = []
        while held - len(gone) + count > capacity:
            gone += turns.pop(chance.randrange(len(turns)))
        if gone:
            bench.tier.delete(gone)
        keys = bench.take_keys(count)
        began = time.perf_counter()
        bench.put(keys)
        yield written, (time.perf_counter() - began) * 1e3
        turns.append(keys)
        written += count
        held += count - len(gone)


def _p99(samples: list[float]) -> float:
    return float(np.percentile(samples, 99))
