"""What is asked for, while the way down is full of what nobody waits for; and what it costs to start."""

import time

from bench.pools import Bench, bench_pools
from bench.report import Row, make_row
from kvstore.core.types import COPY, LOAD, Urgency

__all__ = ["urgency"]

BLOCK_BYTES = 2 << 20
POOL_BYTES = 512 << 20
QUEUED = 60
STARTS_BLOCK_BYTES = 4096
STARTS_BLOCKS = 5_000
STARTS_TRANSFER_BLOCKS = 100


def urgency(rounds: int) -> list[Row]:
    return [_asked(rounds), _starts(rounds)]


def _asked(rounds: int) -> Row:
    """CASES.md 6.18, between GPU and CPU."""
    samples, references = [], []
    with bench_pools(BLOCK_BYTES, POOL_BYTES) as bench:
        half = bench.frames // 2
        up = [(frame, frame) for frame in range(half, half + bench.transfer_blocks)]
        down = [(frame, frame) for frame in range(half)]
        for _ in range(rounds + 1):
            references.append(_seconds(bench, up) * 1e3)
            background = bench.transfers(COPY, down * QUEUED, urgency=Urgency.BACKGROUND)[:QUEUED]
            bench.start(background)
            bench.next_end()
            load = bench.transfers(LOAD, up)
            began = time.perf_counter()
            bench.start(load)
            ended = 1
            while bench.next_end() != load[0].id:
                ended += 1
            samples.append((time.perf_counter() - began) * 1e3)
            for _ in range(len(background) - ended):
                bench.next_end()
    return make_row(
        f"swap-in of 16 MiB while {QUEUED} background copies down wait, over alone",
        "ms",
        samples[1:],
        reference=references[1:],
        ratio_at_most=2.0,
    )


def _seconds(bench: Bench, pairs: list[tuple[int, int]]) -> float:
    return bench.move(bench.transfers(LOAD, pairs))


def _starts(rounds: int) -> Row:
    """CASES.md 6.01: the thread that starts them must not feel how many there are."""
    samples = []
    with bench_pools(STARTS_BLOCK_BYTES, STARTS_BLOCKS * STARTS_BLOCK_BYTES) as bench:
        pairs = [(frame, STARTS_BLOCKS - 1 - frame) for frame in range(STARTS_BLOCKS)]
        for _ in range(rounds + 1):
            transfers = bench.transfers(COPY, pairs, blocks=STARTS_TRANSFER_BLOCKS)
            began = time.perf_counter()
            bench.start(transfers)
            samples.append((time.perf_counter() - began) * 1e6 / STARTS_BLOCKS)
            for _ in transfers:
                bench.next_end()
    return make_row(f"start {STARTS_BLOCKS} block copies: each", "us", samples[1:], at_most=5)
