"""One long system prompt before every request: what is computed of it, and when the first token comes.

One client at a time asks both servers and the bare model in turns. No server can be sooner than the model's
one pass over the request's own tokens, behind a system prompt that is there: that is the bound.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from bench.report import Row, make_row
from bench.serving_bench import Bench
from bench.serving_load import Job
from bench.serving_measured import Measured, measure_closed, percentile
from bench.serving_own import OwnTimes
from bench.serving_server import Server, server

__all__ = ["measure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    system_tokens: int
    own_tokens: int
    requests: int
    # So many of them are asked of the paged server too, whose prompts are all computed whole.
    paged_requests: int
    memory_tokens: int


FULL = Sizes(system_tokens=2000, own_tokens=200, requests=32, paged_requests=4, memory_tokens=12288)
QUICK = Sizes(system_tokens=400, own_tokens=40, requests=8, paged_requests=4, memory_tokens=4096)


def measure(bench: Bench) -> Iterator[Row]:
    sizes = QUICK if bench.quick else FULL
    system = bench.prompts.take(sizes.system_tokens)
    jobs = [
        Job(turns=((*system, *bench.prompts.take(sizes.own_tokens)),), answer_tokens=1)
        for _ in range(sizes.requests)
    ]
    own = OwnTimes(bench.model, sizes.system_tokens + sizes.own_tokens)
    shared, paged, bound = [], [], []
    with (
        server(bench.setup("shared", sizes.memory_tokens)) as sharing,
        server(bench.setup("paged", sizes.memory_tokens)) as paging,
    ):
        _warm_up(bench, (sharing, paging), own, sizes)
        every = sizes.requests // sizes.paged_requests
        for place, job in enumerate(jobs):
            shared.append(measure_closed(sharing, [job], 1))
            bound.append(own.prefill(sizes.system_tokens, sizes.own_tokens))
            if place % every == every - 1:
                paged.append(measure_closed(paging, [job], 1))
                yield from _same(shared[-1], paged[-1])
    yield from rows_of(bench, sizes, shared, paged, bound)


def _warm_up(bench: Bench, servers: tuple[Server, ...], own: OwnTimes, sizes: Sizes) -> None:
    for each in servers:
        measure_closed(each, [Job(turns=(bench.prompts.take(40),), answer_tokens=2)], 1)
    own.prefill(sizes.system_tokens, sizes.own_tokens)


def _same(shared: Measured, paged: Measured) -> Iterator[Row]:
    if [answer.said for answer in shared.answers] != [answer.said for answer in paged.answers]:
        yield make_row("system prompt: answers that differ, shared from paged", "", [1.0], at_most=0)


def rows_of(
    bench: Bench, sizes: Sizes, shared: list[Measured], paged: list[Measured], bound: list[float]
) -> Iterator[Row]:
    name = f"system prompt of {sizes.system_tokens} + {sizes.own_tokens} own, {sizes.requests} requests"
    asked = sum(each.tokens_asked for each in shared)
    least = sizes.system_tokens + sizes.requests * sizes.own_tokens
    computed = sum(each.tokens_computed for each in shared)
    share = sum(each.tokens_computed for each in paged) / sum(each.tokens_asked for each in paged)
    yield make_row(f"{name}: prefill tokens computed over asked for, paged", "%", [100 * share])
    yield make_row(f"{name}: prefill tokens computed over asked for, shared", "%", [100 * computed / asked])
    yield make_row(
        f"{name}: prefill tokens saved, shared over the bound",
        "tokens",
        [asked * share - computed],
        reference=asked * share - least,
        ratio_at_least=0.98,
    )
    ttft = f"{name}: time to the first token, one at a time"
    # The very first has found nothing.
    seconds = [each.first_token_seconds[0] for each in shared[1:]]
    whole = [each.first_token_seconds[0] for each in paged]
    # Of those that were asked right before one of paged's.
    step = len(shared) // len(paged)
    near = [each.first_token_seconds[0] for each in shared[step - 1 :: step]]
    yield make_row(
        f"{ttft}: times sooner than paged, shared [bound]",
        "x",
        [a / b for a, b in zip(whole, near, strict=True)],
        reference=[a / b for a, b in zip(whole, bound[step - 1 :: step], strict=True)],
    )
    yield make_row(
        f"{ttft}: the bound over shared",
        "s",
        bound[1:],
        reference=seconds,
        ratio_at_least=bench.goal(0.85),
    )
    yield make_row(f"{ttft}, paged", "s", whole)
    for percent in (50, 95, 99):
        yield make_row(f"{ttft}, shared, p{percent}", "s", [percentile(seconds, percent)])
