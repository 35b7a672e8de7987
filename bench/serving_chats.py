"""Conversations of several turns on all five set-ups, in KV memory that is too small for all of them at once.

In a closed loop some clients go through one conversation after the other; in an open loop others begin by a
Poisson process of one seed. Each turn sends what was said before, the server's own answers included, so one
token that differs shows in all that follow.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bench.report import Row, make_row
from bench.serving_bench import SEED, Bench
from bench.serving_load import Job, arrivals
from bench.serving_measured import Measured, differing, measure_closed, measure_open
from bench.serving_rows import rows_of
from bench.serving_server import SETUPS, server
from bench.serving_text import talks

__all__ = ["CLOSED", "OPEN", "compare", "measure"]

CLOSED, OPEN = "chats, closed loop", "chats, open loop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    closed: int
    open: int
    turns: int
    answer_tokens: int
    clients: int
    per_second: float
    memory_tokens: int
    reserve_tokens: int


FULL = Sizes(
    closed=4,
    open=3,
    turns=3,
    answer_tokens=24,
    clients=4,
    per_second=0.5,
    memory_tokens=4096,
    reserve_tokens=2048,
)
QUICK = Sizes(
    closed=4,
    open=4,
    turns=2,
    answer_tokens=6,
    clients=3,
    per_second=4.0,
    memory_tokens=8192,
    reserve_tokens=4096,
)


def measure(bench: Bench) -> Iterator[Row]:
    sizes = QUICK if bench.quick else FULL
    closed, opened = make_jobs(sizes)
    for name in SETUPS:
        setup = bench.setup(name, sizes.memory_tokens, reserve_tokens=sizes.reserve_tokens)
        with server(setup) as running:
            bench.note(CLOSED, name, measure_closed(running, closed, sizes.clients))
            bench.note(OPEN, name, measure_open(running, opened))
        for load in (CLOSED, OPEN):
            yield from rows_of(load, name, bench.seen[load][name])
    for load in (CLOSED, OPEN):
        yield from compare(load, bench.seen[load])


def make_jobs(sizes: Sizes) -> tuple[list[Job], list[Job]]:
    """For the closed loop and for the open one: other conversations."""
    made = talks(sizes.closed + sizes.open, sizes.turns, SEED)
    times = [0.0] * sizes.closed + arrivals(sizes.open, sizes.per_second, SEED)
    jobs = [
        Job(
            turns=talk.messages,
            system=talk.system,
            answer_tokens=sizes.answer_tokens,
            session=f"chat-{place}",
            starts_at=time,
        )
        for place, (talk, time) in enumerate(zip(made, times, strict=True))
    ]
    return jobs[: sizes.closed], jobs[sizes.closed :]


def compare(load: str, by_setup: Mapping[str, Measured]) -> Iterator[Row]:
    """Each set-up's answers with those of the first."""
    differ = sum(differing(by_setup[SETUPS[0]], each) for each in by_setup.values())
    count = len(by_setup[SETUPS[0]].answers)
    yield make_row(
        f"{load}: of {count} answers in each of {len(SETUPS)} set-ups, those that differ from the first's",
        "",
        [differ],
        at_most=0,
    )
