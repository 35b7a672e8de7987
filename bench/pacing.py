"""Rate limits, on the real movers: how far off the mean is, and the most that moves in any second."""

import time
from collections import deque
from itertools import count
from statistics import median

from bench.pools import Bench, Pairs, bench_pools
from bench.report import Row, make_row
from kvstore.core.types import COPY, LOAD, Link

__all__ = ["limits"]

BLOCK_BYTES = 2 << 20
POOL_BYTES = 256 << 20
SHARES = (0.25, 0.5, 0.75)
SECONDS = 2.5
UNDER_WAY = 4
# Small, for their ends are what is seen: a part in some hundred of what moves in a second.
TRANSFER_BLOCKS = 2


def limits(rounds: int) -> list[Row]:
    rows = []
    with bench_pools(BLOCK_BYTES, POOL_BYTES) as bench:
        pairs = [(frame, frame) for frame in range(bench.frames)]
        for link, words in ((COPY, "GPU to CPU"), (LOAD, "CPU to GPU")):
            for share in SHARES:
                name = f"limit of {share:.0%} of the bandwidth, {words}"
                rows += _rows(bench, name, link, pairs, share, rounds)
    return rows


def _bandwidth(bench: Bench, link: Link, pairs: Pairs) -> float:
    """Just before, for it is not the same all the time: the median of three tries."""
    tries = [bench.move(bench.transfers(link, pairs)) for _ in range(3)]
    return len(pairs) * bench.block_bytes / median(tries)


def _rows(bench: Bench, name: str, link: Link, pairs: Pairs, share: float, rounds: int) -> list[Row]:
    off, peaks = [], []
    for _ in range(rounds):
        rate = share * _bandwidth(bench, link, pairs)
        bench.movers.set_rate(link, rate)
        moved = _keep_busy(bench, link, pairs)
        bench.movers.set_rate(link, 0)
        mean = sum(size for _, size in moved[1:]) / (moved[-1][0] - moved[0][0])
        off.append(abs(mean / rate - 1) * 100)
        peaks.append(_most_in_a_second(moved) / rate)
    return [
        make_row(f"{name}: mean off by", "%", off, at_most=5),
        # Never, so not the median of the rounds.
        make_row(f"{name}: most in any second of {rounds} rounds", "x", [max(peaks)], at_most=1.05),
    ]


def _keep_busy(bench: Bench, link: Link, pairs: Pairs) -> list[tuple[float, int]]:
    """Ends of transfers, and their bytes."""
    size = TRANSFER_BLOCKS * bench.block_bytes
    starts = count()

    def start() -> None:
        at = next(starts) * TRANSFER_BLOCKS % len(pairs)
        bench.start(bench.transfers(link, pairs[at : at + TRANSFER_BLOCKS], blocks=TRANSFER_BLOCKS))

    moved: list[tuple[float, int]] = []
    end = time.perf_counter() + SECONDS
    for _ in range(UNDER_WAY):
        start()
    while time.perf_counter() < end:
        bench.next_end()
        moved.append((time.perf_counter(), size))
        start()
    for _ in range(UNDER_WAY):
        bench.next_end()
    return moved


def _most_in_a_second(moved: list[tuple[float, int]]) -> int:
    window: deque[tuple[float, int]] = deque()
    total = most = 0
    for at, size in moved:
        window.append((at, size))
        total += size
        while window[0][0] <= at - 1.0:
            total -= window.popleft()[1]
        most = max(most, total)
    return most
