"""Loads that kvstore can do nothing for: what is lost by having it, all tiers included, against `paged`.

No two prompts begin alike; or they are so short that no block of them is worth finding; or all sequences are
active and fit. Both servers are measured in turns. And whether `kvstore status` says that it is so.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bench.report import Row, make_row
from bench.serving_bench import Bench
from bench.serving_load import Job
from bench.serving_measured import Measured, differing, measure_closed
from bench.serving_server import Server, server

__all__ = ["LOADS", "Load", "measure"]

CLIENTS = 8
MEMORY_TOKENS = 12288
# Short ones, and many: so what others do on the machine meets both.
ROUNDS, ROUNDS_QUICK = 6, 2
# In the words of `kvstore status`.
LITTLE = "kvstore has little to give"


class Load(NamedTuple):
    name: str
    # Tokens of the prompts, one a request.
    prompts: Sequence[int]
    answer_tokens: int


LOADS = (
    Load("no shared prefix", [200] * 8, 12),
    Load("prompts of tens of tokens", range(20, 68, 4), 12),
    Load("all active and fitting", [40] * 8, 24),
)
QUICK_LOADS = (
    Load("no shared prefix", [100] * 8, 8),
    Load("prompts of tens of tokens", range(20, 68, 6), 8),
    Load("all active and fitting", [40] * 8, 24),
)


def measure(bench: Bench) -> Iterator[Row]:
    with (
        server(bench.setup("full", MEMORY_TOKENS)) as full,
        server(bench.setup("paged", MEMORY_TOKENS)) as paged,
    ):
        for load in QUICK_LOADS if bench.quick else LOADS:
            yield from _rows(bench, load, full, paged)
        yield make_row(
            "all three: kvstore status says that it has little to give",
            "",
            [float(any(LITTLE in told for told in full.advice()))],
            at_least=1,
        )


def _rows(bench: Bench, load: Load, full: Server, paged: Server) -> Iterator[Row]:
    found: dict[str, list[Measured]] = {"full": [], "paged": []}
    differ = 0
    for turn in range(1 + (ROUNDS_QUICK if bench.quick else ROUNDS)):
        jobs = [
            Job(turns=(bench.prompts.take(tokens),), answer_tokens=load.answer_tokens)
            for tokens in load.prompts
        ]
        # Who comes first takes turns too.
        order = (full, paged) if turn % 2 else (paged, full)
        measured = {each.setup.name: measure_closed(each, jobs, CLIENTS) for each in order}
        differ += differing(measured["full"], measured["paged"])
        for name, each in measured.items():
            found[name].append(each)
            bench.note(load.name, name, each)
    # The first turn is of two processes that do some things for the first time.
    ours, plain = found["full"][1:], found["paged"][1:]
    yield make_row(
        f"{load.name}: tokens a second, full over paged",
        "tok/s",
        [each.tokens_per_second for each in ours],
        reference=[each.tokens_per_second for each in plain],
        ratio_at_least=bench.goal(0.97),
    )
    yield make_row(
        f"{load.name}: processor time a token, full over paged",
        "ms",
        [1e3 * each.cpu_per_token for each in ours],
        reference=[1e3 * each.cpu_per_token for each in plain],
    )
    yield make_row(f"{load.name}: answers that differ, full from paged", "", [differ], at_most=0)
