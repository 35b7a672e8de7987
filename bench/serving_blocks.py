"""How many tokens a block should have: 8, 16, 32 and 64 on short prompts and on long ones that share a half.

A server for each, measured in turns. Small blocks waste less of the last one and share to the token; large
ones cost less to look for, to move and to write to disk.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace

from bench.report import Row, make_row
from bench.serving_bench import Bench
from bench.serving_load import Job
from bench.serving_measured import Measured, differing, measure_closed
from bench.serving_server import Server, server

__all__ = ["BLOCK_TOKENS", "measure"]

BLOCK_TOKENS = (8, 16, 32, 64)
USUAL = 16
MEMORY_TOKENS = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    name: str
    clients: int
    requests: int
    # Of the prompt's beginning, which all share.
    shared_tokens: int
    own_tokens: int
    answer_tokens: int


LOADS = (
    Load(
        name="short prompts, 20 tokens of them shared",
        clients=8,
        requests=8,
        shared_tokens=20,
        own_tokens=25,
        answer_tokens=20,
    ),
    Load(
        name="long prompts, half of them shared",
        clients=2,
        requests=4,
        shared_tokens=500,
        own_tokens=500,
        answer_tokens=8,
    ),
)
QUICK_LOADS = (
    replace(LOADS[0], clients=4, requests=8, answer_tokens=8),
    replace(LOADS[1], shared_tokens=150, own_tokens=150, answer_tokens=4),
)


def measure(bench: Bench) -> Iterator[Row]:
    rounds = 1 if bench.quick else 2
    with ExitStack() as stack:
        servers = {
            size: stack.enter_context(server(bench.setup("full", MEMORY_TOKENS, block_tokens=size)))
            for size in BLOCK_TOKENS
        }
        for each in servers.values():
            measure_closed(each, [Job(turns=(bench.prompts.take(40),), answer_tokens=2)], 1)
        for load in QUICK_LOADS if bench.quick else LOADS:
            found: dict[int, list[Measured]] = {size: [] for size in BLOCK_TOKENS}
            for turn in range(rounds):
                for size, measured in _round(bench, load, servers, turn).items():
                    found[size].append(measured)
            yield from _rows(load, found)


def _round(bench: Bench, load: Load, servers: Mapping[int, Server], turn: int) -> dict[int, Measured]:
    """All servers, one after the other; another one is the first in each round."""
    beginning = bench.prompts.take(load.shared_tokens)
    jobs = [
        Job(turns=((*beginning, *bench.prompts.take(load.own_tokens)),), answer_tokens=load.answer_tokens)
        for _ in range(1 + load.requests)
    ]
    # The first computes the beginning, alone: two at once would both, now and then.
    for each in servers.values():
        measure_closed(each, jobs[:1], 1)
    order = [BLOCK_TOKENS[(turn + place) % len(BLOCK_TOKENS)] for place in range(len(BLOCK_TOKENS))]
    return {size: measure_closed(servers[size], jobs[1:], load.clients) for size in order}


def _rows(load: Load, found: Mapping[int, list[Measured]]) -> Iterator[Row]:
    usual = [each.tokens_per_second for each in found[USUAL]]
    for size in sorted(found):
        name = f"blocks of {size} tokens, {load.name}"
        measured = found[size]
        yield make_row(
            f"{name}: tokens a second, over those of blocks of {USUAL}",
            "tok/s",
            [each.tokens_per_second for each in measured],
            reference=usual,
        )
        live = [100 * each.live_share for each in measured if not math.isnan(each.live_share)]
        if live:
            yield make_row(f"{name}: KV memory holding live tokens", "%", live)
        yield make_row(f"{name}: prefix hit rate", "%", [100 * each.hit_rate for each in measured])
        differ = sum(differing(a, b) for a, b in zip(measured, found[USUAL], strict=True))
        yield make_row(f"{name}: answers that differ from blocks of {USUAL}", "", [differ], at_most=0)
