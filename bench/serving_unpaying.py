"""Loads that kvstore can do nothing for: what is lost by having it, all tiers included, against `paged`.

No two prompts begin alike; or they are so short that no block of them is worth finding; or all sequences are
active and fit. Both servers are measured in turns, and some pairs of them: where a process has its memory
makes it a few percent faster or slower than another of its kind, for as long as it lives. And whether
`kvstore status` says that it is so.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bench.report import Row, make_row
from bench.serving_bench import Bench
from bench.serving_load import Job
from bench.serving_measured import Measured, differing, measure_closed
from bench.serving_server import Server, server

__all__ = ["LOADS", "Load", "measure"]

CLIENTS = 8
MEMORY_TOKENS = 12288
# Each plays each load twice, and another goes first. Short loads: what others do on the machine meets both.
PAIRS, PAIRS_QUICK = 3, 1
# In the words of `kvstore status`.
LITTLE = "kvstore has little to give"


class Load(NamedTuple):
    name: str
    # Tokens of the prompts, one a request.
    prompts: Sequence[int]
    answer_tokens: int


LOADS = (
    Load("no shared prefix", (200,) * 8, 12),
    Load("prompts of tens of tokens", range(20, 68, 4), 12),
    Load("all active and fitting", (40,) * 8, 24),
)
QUICK_LOADS = (
    Load("no shared prefix", (100,) * 8, 8),
    Load("prompts of tens of tokens", range(20, 68, 6), 8),
    Load("all active and fitting", (40,) * 8, 24),
)


@dataclass
class Rounds:
    """Of one load: what each came to by set-up, and how many answers differed in all."""

    by_setup: dict[str, list[Measured]] = field(default_factory=lambda: {"full": [], "paged": []})
    differ: int = 0

    def add(self, measured: Mapping[str, Measured]) -> None:
        for name, each in measured.items():
            self.by_setup[name].append(each)
        self.differ += differing(measured["full"], measured["paged"])


def measure(bench: Bench) -> Iterator[Row]:
    loads = QUICK_LOADS if bench.quick else LOADS
    found = {load: Rounds() for load in loads}
    told = []
    for _ in range(PAIRS_QUICK if bench.quick else PAIRS):
        with (
            server(bench.setup("full", MEMORY_TOKENS)) as full,
            server(bench.setup("paged", MEMORY_TOKENS)) as paged,
        ):
            # Both do some things for the first time.
            _play(bench, loads[0], (full, paged))
            for load in loads:
                for order in ((paged, full), (full, paged)):
                    found[load].add(_play(bench, load, order))
            told.append(any(LITTLE in advice for advice in full.advice()))
    for load in loads:
        yield from _rows(bench, load, found[load])
    yield make_row(
        "all three: kvstore status says that it has little to give", "", [float(all(told))], at_least=1
    )


def _play(bench: Bench, load: Load, order: Sequence[Server]) -> dict[str, Measured]:
    """The same requests on one server after the other."""
    jobs = [
        Job(turns=(bench.prompts.take(tokens),), answer_tokens=load.answer_tokens) for tokens in load.prompts
    ]
    return {each.setup.name: measure_closed(each, jobs, CLIENTS) for each in order}


def _rows(bench: Bench, load: Load, rounds: Rounds) -> Iterator[Row]:
    ours, plain = rounds.by_setup["full"], rounds.by_setup["paged"]
    bench.note(load.name, "full", ours[-1])
    bench.note(load.name, "paged", plain[-1])
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
    yield make_row(f"{load.name}: answers that differ, full from paged", "", [rounds.differ], at_most=0)
