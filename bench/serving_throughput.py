"""Tokens a second of eight clients at once, whose requests begin with one system prompt: shared over paged.

The system prompt has been computed once before, as in a server that runs. The bound takes from what the paged
server needed the prefill of the system prompt, once a request, by the bare model's own times in the same run.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from bench.report import Row, make_row
from bench.serving_bench import Bench
from bench.serving_load import Job
from bench.serving_measured import Measured, differing, measure_closed
from bench.serving_own import OwnTimes
from bench.serving_server import server

__all__ = ["measure"]

CLIENTS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    system_tokens: int
    own_tokens: int
    # Of an answer, and in how many rounds each is measured.
    rounds: dict[int, int]
    memory_tokens: int


FULL = Sizes(system_tokens=512, own_tokens=32, rounds={64: 2, 256: 2}, memory_tokens=12288)
QUICK = Sizes(system_tokens=128, own_tokens=16, rounds={8: 2, 24: 1}, memory_tokens=4096)


def measure(bench: Bench) -> Iterator[Row]:
    sizes = QUICK if bench.quick else FULL
    system = bench.prompts.take(sizes.system_tokens)
    own = OwnTimes(bench.model, sizes.system_tokens + sizes.own_tokens)
    with (
        server(bench.setup("shared", sizes.memory_tokens)) as sharing,
        server(bench.setup("paged", sizes.memory_tokens)) as paging,
    ):
        for each in (sharing, paging):
            measure_closed(each, [Job(turns=((*system, *bench.prompts.take(8)),), answer_tokens=2)], 1)
        for answer_tokens, rounds in sizes.rounds.items():
            shared, paged, bounds = [], [], []
            for _ in range(rounds):
                jobs = [_job(bench, system, sizes, answer_tokens) for _ in range(CLIENTS)]
                saved = CLIENTS * own.prefill(0, sizes.system_tokens)
                paged.append(measure_closed(paging, jobs, CLIENTS))
                shared.append(measure_closed(sharing, jobs, CLIENTS))
                bounds.append(bound(paged[-1], saved))
            yield from _rows(bench, sizes, answer_tokens, shared, paged, bounds)


def bound(paged: Measured, saved: float) -> float:
    """Tokens a second, had it not computed so many seconds of prefill."""
    return paged.tokens_per_second * paged.seconds / (paged.seconds - saved)


def _job(bench: Bench, system: tuple[int, ...], sizes: Sizes, answer_tokens: int) -> Job:
    return Job(turns=((*system, *bench.prompts.take(sizes.own_tokens)),), answer_tokens=answer_tokens)


def _rows(
    bench: Bench,
    sizes: Sizes,
    answer_tokens: int,
    shared: list[Measured],
    paged: list[Measured],
    bounds: list[float],
) -> Iterator[Row]:
    load = f"{CLIENTS} at once, system prompt of {sizes.system_tokens}, {answer_tokens} generated"
    bench.note(load, "paged", paged[-1])
    bench.note(load, "shared", shared[-1])
    speeds = [each.tokens_per_second for each in shared]
    yield make_row(
        f"{load}: tokens a second, shared over paged",
        "tok/s",
        speeds,
        reference=[each.tokens_per_second for each in paged],
    )
    yield make_row(
        f"{load}: tokens a second, shared over the bound",
        "tok/s",
        speeds,
        reference=bounds,
        ratio_at_least=bench.goal(0.9),
    )
    yield make_row(
        f"{load}: processor time a token, shared over paged",
        "ms",
        [1e3 * each.cpu_per_token for each in shared],
        reference=[1e3 * each.cpu_per_token for each in paged],
    )
    differ = sum(differing(one, other) for one, other in zip(shared, paged, strict=True))
    yield make_row(f"{load}: answers that differ, shared from paged", "", [differ], at_most=0)
