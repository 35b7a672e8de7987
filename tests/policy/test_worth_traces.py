"""Eviction by worth: what it comes to on made traces, and admission with it."""

from dataclasses import replace

import numpy as np
import pytest

from bench.policy_cases import GENERATORS, case_of, chats, ended_sessions
from bench.replay import replay
from bench.traces import Request, Trace
from kvstore.core.types import CPU, DISK
from kvstore.policy.admission import WATCHED_SECONDS, AdmitByChance
from kvstore.policy.arc import Arc
from kvstore.policy.eviction import Lru
from kvstore.policy.lfu import LfuAgeing
from kvstore.policy.s3fifo import S3Fifo
from kvstore.policy.worth import Worth


def best_classic(trace: Trace, capacity: int) -> float:
    made = (Lru(), LfuAgeing(), Arc([capacity]), S3Fifo([capacity]))
    return max(replay(trace, policy, [capacity]).hit_rate for policy in made)


@pytest.mark.slow
@pytest.mark.parametrize("make", GENERATORS, ids=lambda make: make.__name__)
def test_it_loses_to_no_classic_on_traces_it_was_not_made_for(make) -> None:
    trace = make()
    trace = trace.part(0, 2_500, trace.name)
    for capacity in case_of(trace).capacities:
        assert replay(trace, Worth(), [capacity]).hit_rate >= 0.975 * best_classic(trace, capacity), capacity


def test_it_does_the_same_each_time() -> None:
    trace = chats(requests=1_500)
    counts = [replay(trace, Worth(), [64, 400, 1_000]) for _ in range(2)]
    assert counts[0] == counts[1]


def test_hints_help() -> None:
    trace = chats(requests=3_000)
    hints = ended_sessions(trace, 0.6, 1)
    plain, hinted = (replay(trace, Worth(), [1_000], hints=each).hit_rate for each in (None, hints))
    assert hinted > 1.1 * plain


def test_that_a_session_is_over_is_told_before_its_blocks_make_room() -> None:
    """So of a last prompt that the tier can't hold nothing is written below."""
    blocks = np.arange(40).reshape(5, 8)
    requests = [
        Request(time=float(index), prompt_tokens=4_096, answer_tokens=100, blocks=each)
        for index, each in enumerate(blocks)
    ]
    trace = Trace(name="prompts of eight blocks", requests=requests, block_count=40)
    hints = {index: [request.blocks] for index, request in enumerate(requests)}

    def written(told: dict) -> int:
        worth = Worth()
        admission = AdmitByChance(worth, {CPU: 0.1})
        return replay(trace, worth, [5, 40], admission=admission, hints=told).put[CPU]

    assert written(hints) == 0 < written({})


def test_admission_saves_writes_and_keeps_chains_whole() -> None:
    # Over more than half an hour, so that most of it comes when uses have been watched for long enough.
    trace = slowed(chats(requests=4_000), 5)
    sizes = [64, 400, 4_000]

    def run(least: float):
        worth = Worth()
        return replay(trace, worth, sizes, admission=AdmitByChance(worth, {CPU: least, DISK: least}))

    everything, some = run(0.0), run(0.5)
    assert some.put[DISK] < 0.9 * everything.put[DISK]
    # Of what it writes, more is read.
    assert some.hits[DISK] / some.put[DISK] > everything.hits[DISK] / everything.put[DISK]
    assert some.hit_rate > 0.85 * everything.hit_rate


def test_before_uses_were_watched_for_long_only_what_is_over_is_refused() -> None:
    trace, sizes = chats(requests=2_000), [64, 400, 4_000]
    hints = ended_sessions(trace, 0.6, 1)
    assert trace.requests[-1].time < WATCHED_SECONDS

    def run(least: float, told):
        worth = Worth()
        admission = AdmitByChance(worth, {CPU: least, DISK: least})
        return replay(trace, worth, sizes, admission=admission, hints=told)

    assert run(0.5, None) == run(0.0, None)
    assert run(0.5, hints).put[CPU] < run(0.0, hints).put[CPU]


def slowed(trace: Trace, factor: float) -> Trace:
    requests = [replace(request, time=factor * request.time) for request in trace.requests]
    return Trace(name=trace.name, requests=requests, block_count=trace.block_count)
