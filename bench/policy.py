"""Eviction policies on recorded and made traces, beside each other and the optimum.

    python -m bench.policy [--json] [--quick] [--save] [--made] [TRACE ...]

TRACE is a file (docs/planner.md says of which form), or a folder of them; without any, `shared/data/traces`
beside the repository or above it. A row is the share of block reads that hit behind an unbroken prefix, for
one tier of so many blocks, or for three; its reference is the best of LRU, LFU with ageing, ARC and S3-FIFO
at that size. Replays draw nothing, so one round says all.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench.policy_cases import GENERATORS, Case, case_of, ended_sessions, halves
from bench.replay import Counts, replay
from bench.report import Row, add_options, make_row, tell
from bench.traces import Trace, find_traces, read_trace
from kvstore.core.ports import EvictionPolicy
from kvstore.core.types import CPU, DISK, GPU, Tier
from kvstore.planner.optimum import Use, best_hits
from kvstore.policy.admission import AdmitByChance
from kvstore.policy.arc import Arc
from kvstore.policy.eviction import Lru
from kvstore.policy.lfu import LfuAgeing
from kvstore.policy.s3fifo import S3Fifo
from kvstore.policy.worth import Worth

CLASSICS: dict[str, Callable[[int], EvictionPolicy]] = {
    "LRU": lambda capacity: Lru(),
    "LFU with ageing": lambda capacity: LfuAgeing(),
    "ARC": lambda capacity: Arc([capacity]),
    "S3-FIFO": lambda capacity: S3Fifo([capacity]),
}
READS_PER_SECOND = 60_000
# Of made traces, halves of recorded ones, and all without goals: what may be lost to the best classic.
LEAST_OF_CLASSIC = 0.98
# Told to be over, of the sessions that end.
HINTED, HINTS_SEED = 0.6, 1
HINTED_TRACE, HINTED_CAPACITY, HINTED_GOAL = "mooncake_conversation", 4_000, 0.180
# Blocks of three tiers; the frontier: least chance of a read for a write to CPU and to disk.
TIERS = (640, 4_096, 32_768)
FRONTIER = ((0.0, 0.0), (0.08, 0.15), (0.2, 0.2), (0.25, 0.25))
FRONTIER_HINTED = ((0.0, 0.0), (0.1, 0.1), (0.2, 0.2))
TIERS_GOAL = 0.335
# Of what LRU writes, by the tier that it leaves; to be met at this place of the frontier, nothing told.
WRITES_GOAL, WRITES_GOAL_AT = {GPU: 0.85, CPU: 0.82}, FRONTIER[-1]
# And where sessions are told to be over, at every place but the first, which refuses nothing.
WRITES_GOAL_HINTED = {GPU: 0.60, CPU: 0.50}


def measure(traces: Sequence[Trace]) -> Iterator[Row]:
    for trace in traces:
        case = case_of(trace)
        yield from _one_tier(trace, case)
        if case.goals:
            for half in halves(trace):
                yield from _one_tier(half, Case(trace=half.name, capacities=case.capacities))
    for trace in traces:
        if trace.name.startswith(HINTED_TRACE):
            yield from _hinted(trace)
            yield from _three_tiers(trace)


def _one_tier(trace: Trace, case: Case) -> Iterator[Row]:
    seconds = 0.0
    for capacity in case.capacities:
        at = f"{trace.name}, {capacity:,} blocks"
        rates = {name: replay(trace, make(capacity), [capacity]).hit_rate for name, make in CLASSICS.items()}
        for name, rate in rates.items():
            yield make_row(f"{at}: {name}", "hits", [rate])
        yield make_row(f"{at}: optimum", "hits", [optimal_hit_rate(trace, capacity)])
        best, goal = max(rates.values()), case.goals.get(capacity)
        start = time.process_time()
        rate = replay(trace, Worth(), [capacity]).hit_rate
        seconds += time.process_time() - start
        least = LEAST_OF_CLASSIC if goal is None and best else None
        yield make_row(
            f"{at}: worth",
            "hits",
            [rate],
            reference=best or None,
            at_least=goal,
            ratio_at_least=least,
        )
    reads = trace.read_count * len(case.capacities)
    yield make_row(f"{trace.name}: replayed", "reads/s", [reads / seconds], at_least=READS_PER_SECOND)


def optimal_hit_rate(trace: Trace, capacity: int) -> float:
    """In blocks, behind an unbroken prefix."""
    uses = [Use(tuple(request.blocks.tolist())) for request in trace.requests]
    return best_hits(uses, capacity) / trace.read_count if trace.read_count else 0.0


def _hinted(trace: Trace) -> Iterator[Row]:
    hints = ended_sessions(trace, HINTED, HINTS_SEED)
    rate = replay(trace, Worth(), [HINTED_CAPACITY], hints=hints).hit_rate
    yield make_row(
        f"{trace.name}, {HINTED_CAPACITY:,} blocks: worth, {HINTED:.0%} of ended sessions told",
        "hits",
        [rate],
        at_least=HINTED_GOAL,
    )


def _three_tiers(trace: Trace) -> Iterator[Row]:
    plain = replay(trace, Lru(), TIERS)
    at = f"{trace.name}, {' / '.join(f'{size:,}' for size in TIERS)}"
    yield from _tier_rows(f"{at}: LRU", plain, plain, {})
    hints = ended_sessions(trace, HINTED, HINTS_SEED)
    for told, frontier in ((None, FRONTIER), (hints, FRONTIER_HINTED)):
        for to_cpu, to_disk in frontier:
            worth = Worth()
            admission = AdmitByChance(worth, {CPU: to_cpu, DISK: to_disk})
            counts = replay(trace, worth, TIERS, admission=admission, hints=told)
            hinted = ", ended sessions told" if told else ""
            most: dict[Tier, float] = {}
            if told is not None and to_cpu:
                most = WRITES_GOAL_HINTED
            elif told is None and (to_cpu, to_disk) == WRITES_GOAL_AT:
                most = WRITES_GOAL
            yield from _tier_rows(f"{at}: worth {to_cpu:g} / {to_disk:g}{hinted}", counts, plain, most)


def _tier_rows(name: str, counts: Counts, plain: Counts, most: dict[Tier, float]) -> Iterator[Row]:
    """`most`: by tier, the most that may be written from it, as a share of `plain`."""
    yield make_row(name, "hits", [counts.hit_rate], reference=plain.hit_rate, at_least=TIERS_GOAL)
    for tier in (GPU, CPU):
        written, reference = counts.put[tier + 1], plain.put[tier + 1]
        yield make_row(
            f"{name}, from {tier.name}",
            "blocks",
            [written],
            reference=reference,
            ratio_at_most=most.get(tier),
        )
    yield make_row(f"{name}, read of disk", "/write", [counts.hits[DISK] / max(1, counts.put[DISK])])


def _main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.policy", description="Eviction policies on traces, beside the optimum."
    )
    parser.add_argument("trace", nargs="*", type=Path, help="files, or folders of them")
    parser.add_argument("--made", action="store_true", help="made traces as well")
    add_options(parser, "policy")
    arguments = parser.parse_args()
    traces = [read_trace(path) for path in find_traces(arguments.trace)]
    if arguments.made:
        traces += [make() for make in GENERATORS]
    if not traces:
        parser.error("no traces: name files or folders, or ask for --made")
    if arguments.quick:
        traces = [trace.part(0, len(trace.requests) // 4, trace.name) for trace in traces]
    tell("policy", measure(traces), arguments)


if __name__ == "__main__":
    _main()
