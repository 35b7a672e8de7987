"""Copies between the CPU pool and the "GPU" pool, over numpy's own of the same bytes in as many threads.

Frames stand one behind the other, as they are taken from a fresh pool, or all over it. numpy copies what
stands together in one go, a transfer's worth at a time, else block by block.
"""

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from bench.pools import Bench, Pairs, bench_pools
from bench.report import Row, make_row
from kvstore.core.types import COPY, LOAD, Link

__all__ = ["BLOCK_SIZES", "LINK_WORDS", "copies", "pairs_of"]

# By name: bytes, and the share of numpy that is the goal for one direction.
BLOCK_SIZES = {"256 KiB": (256 << 10, 0.75), "2 MiB": (2 << 20, 0.90), "4 MiB": (4 << 20, None)}
BOTH_GOAL = 0.85
POOL_BYTES = 512 << 20
LINK_WORDS = {COPY: "GPU to CPU", LOAD: "CPU to GPU"}


def copies(rounds: int) -> list[Row]:
    rows = []
    for size, (block_bytes, goal) in BLOCK_SIZES.items():
        with bench_pools(block_bytes, POOL_BYTES) as bench:
            for how in ("neighbours", "scattered"):
                for link, words in LINK_WORDS.items():
                    name = f"copy {words}, blocks of {size}, {how}"
                    rows.append(_row(bench, name, {link: pairs_of(bench, how, 0, 1)}, rounds, goal))
                # Each in a half of its own, on both sides.
                both = {COPY: pairs_of(bench, how, 0, 2), LOAD: pairs_of(bench, how, 1, 2)}
                name = f"copy both ways at once, blocks of {size}, {how}"
                rows.append(_row(bench, name, both, rounds, BOTH_GOAL))
    return rows


def pairs_of(bench: Bench, how: str, part: int, parts: int) -> Pairs:
    share = bench.frames // parts
    frames = np.arange(part * share, (part + 1) * share)
    rng = np.random.default_rng(part)
    source, target = (
        (frames, frames) if how == "neighbours" else (rng.permutation(frames), rng.permutation(frames))
    )
    return list(zip(source.tolist(), target.tolist(), strict=True))


def _row(bench: Bench, name: str, pairs: dict[Link, Pairs], rounds: int, goal: float | None) -> Row:
    gigabytes = sum(map(len, pairs.values())) * bench.block_bytes / 1e9
    samples, references = [], []
    for _ in range(rounds + 1):
        transfers = [bench.transfers(link, each) for link, each in pairs.items()]
        samples.append(gigabytes / bench.move(*transfers))
        calls = [partial(_copy, *_sides(bench, link), _runs(bench, each)) for link, each in pairs.items()]
        references.append(gigabytes / _at_once(calls))
    return make_row(name, "GB/s", samples[1:], reference=references[1:], ratio_at_least=goal)


def _sides(bench: Bench, link: Link) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    gpu, cpu = bench.gpu.frames(0), bench.cpu.frames(0)
    return (gpu, cpu) if link == COPY else (cpu, gpu)


def _runs(bench: Bench, pairs: Pairs) -> list[tuple[int, int, int]]:
    """Source, target and length of what numpy copies in one go."""
    breaks = [0]
    for index, (before, after) in enumerate(pairwise(pairs), 1):
        follows = (after[0], after[1]) == (before[0] + 1, before[1] + 1)
        if not follows or index - breaks[-1] == bench.transfer_blocks:
            breaks.append(index)
    return [(*pairs[start], end - start) for start, end in pairwise([*breaks, len(pairs)])]


def _copy(source: NDArray[np.uint8], target: NDArray[np.uint8], runs: list[tuple[int, int, int]]) -> None:
    for from_, to, length in runs:
        target[to : to + length] = source[from_ : from_ + length]


def _at_once(calls: Sequence[Callable[[], None]]) -> float:
    """Each in a thread that stands ready; the seconds until all are done."""
    ready, go = threading.Barrier(len(calls) + 1), threading.Event()

    def run(call: Callable[[], None]) -> None:
        ready.wait()
        go.wait()
        call()

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    ready.wait()
    began = time.perf_counter()
    go.set()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began
