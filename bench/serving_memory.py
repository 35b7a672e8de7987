"""How many requests the same KV memory takes at once, and how much of it holds tokens: paged over contiguous.

A crowd that is larger than either takes, of requests that use some 300 tokens each where 2,048 are reserved.
"""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from bench.report import Row, make_row
from bench.serving_bench import SEED, Bench
from bench.serving_load import Job
from bench.serving_measured import differing, measure_closed
from bench.serving_rows import rows_of
from bench.serving_server import server

__all__ = ["measure"]

LOAD = "a crowd of requests"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    memory_tokens: int
    reserve_tokens: int
    requests: int
    # Of a prompt, least and most.
    prompt_tokens: tuple[int, int]
    answer_tokens: int


FULL = Sizes(memory_tokens=4096, reserve_tokens=2048, requests=40, prompt_tokens=(140, 340), answer_tokens=60)
QUICK = Sizes(memory_tokens=1024, reserve_tokens=256, requests=48, prompt_tokens=(20, 50), answer_tokens=40)


def measure(bench: Bench) -> Iterator[Row]:
    sizes = QUICK if bench.quick else FULL
    jobs = make_jobs(bench, sizes)
    measured = {}
    for name in ("contiguous", "paged"):
        setup = bench.setup(name, sizes.memory_tokens, reserve_tokens=sizes.reserve_tokens)
        with server(setup) as running:
            measured[name] = measure_closed(running, jobs, sizes.requests)
        bench.note(LOAD, name, measured[name])
        yield from rows_of(LOAD, name, measured[name])
    contiguous, paged = measured["contiguous"], measured["paged"]
    if math.isnan(paged.at_once + paged.live_share + contiguous.at_once + contiguous.live_share):
        raise SystemExit("the servers were done before anybody had looked; remedy: a larger load")
    used = sum(answer.prompt_tokens + answer.completion_tokens for answer in paged.answers)
    yield make_row(
        f"requests at once in the same KV memory, {used / len(jobs):.0f} tokens used on average: paged, over "
        f"contiguous at {sizes.reserve_tokens} reserved",
        "",
        [paged.at_once],
        reference=contiguous.at_once,
        ratio_at_least=None if bench.quick else 6,
    )
    yield make_row(
        "KV memory holding live tokens, paged [contiguous]",
        "%",
        [100 * paged.live_share],
        reference=100 * contiguous.live_share,
        at_least=bench.goal(95),
    )
    yield make_row(
        "all KV memory, the part that holds live tokens, paged [contiguous]",
        "%",
        [100 * paged.used_share],
        reference=100 * contiguous.used_share,
    )
    yield make_row(
        f"{LOAD}: answers that differ from those of contiguous", "", [differing(contiguous, paged)], at_most=0
    )


def make_jobs(bench: Bench, sizes: Sizes) -> list[Job]:
    made = random.Random(SEED)
    lengths = [made.randint(*sizes.prompt_tokens) for _ in range(sizes.requests)]
    return [Job(turns=(bench.prompts.take(length),), answer_tokens=sizes.answer_tokens) for length in lengths]
