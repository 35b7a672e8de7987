"""Traces made ready: who goes on from whom, which block is which, and what answers leave behind."""

import pytest

from kvstore.core.errors import TraceInvalid
from kvstore.planner.requests import Request
from kvstore.planner.sessions import NOBODY, infer_previous, named_previous
from kvstore.planner.traces import open_trace
from kvstore.planner.workload import load_workload
from tests.planner.made import Made, request
from tests.planner.shared_data import find_trace


def test_blocks_are_known_by_what_they_hang_on():
    """So ids that name a block's own tokens alone do, too: 7 behind 1 is not 7 behind 2."""
    made = Made(request(0, [1, 7]), request(1, [2, 7]), request(2, [1, 7]))
    first, second, third = load_workload(made).turns
    assert first.prompt == third.prompt
    assert set(first.prompt).isdisjoint(second.prompt)


def test_the_part_filled_last_block_is_nobodys():
    turns = load_workload(Made(request(0, [1, 2], tokens=6), request(1, [1, 2], tokens=8))).turns
    assert [len(turn.prompt) for turn in turns] == [1, 2]


def test_an_answer_is_what_the_next_prompt_has_in_its_place():
    # Blocks of 4: the prompt leaves 2 tokens in its second block, the answer fills that and one more.
    made = Made(request(0, [1, 2], tokens=6, output=7, session="a"), request(9, [1, 5, 6, 7], session="a"))
    first, second = load_workload(made).turns
    assert first.next is second
    assert first.prompt + first.answer == second.prompt[:3]


def test_an_answer_that_nobody_goes_on_from_is_nobodys():
    made = Made(request(0, [1], output=8, session="a"), request(9, [1, 5], session="a"))
    first, second = load_workload(made).turns
    # Its next prompt is shorter than prompt and answer: it can't begin with them.
    assert len(first.answer) == 1
    assert first.answer[0] not in second.prompt


def test_an_answer_that_the_trace_names():
    made = Made(request(0, [1], output=9, answer=[5, 6]), request(1, [1, 5, 6, 7]))
    first, second = load_workload(made).turns
    assert first.prompt + first.answer == second.prompt[:3]


def test_requests_come_in_the_order_of_their_times():
    workload = load_workload(Made(request(30, [1]), request(10, [2]), request(20, [3])))
    assert [turn.time for turn in workload.turns] == [0, 10, 20]


def test_a_trace_without_requests_is_refused():
    with pytest.raises(TraceInvalid, match="no requests"):
        load_workload(Made())


def test_a_share_takes_whole_conversations():
    requests = [request(number, [number], session=str(number % 50)) for number in range(200)]
    turns = load_workload(Made(*requests), share=0.5).turns
    by_session = {turn.session: 0 for turn in turns}
    for turn in turns:
        by_session[turn.session] += 1
    assert 10 < len(by_session) < 40
    assert set(by_session.values()) == {4}


# ---------------------------------------------------------------------------- conversations


def test_named_sessions():
    assert [*named_previous(["a", "b", "", "a", "", "a"])] == [NOBODY, NOBODY, NOBODY, 0, NOBODY, 3]


@pytest.mark.parametrize(
    ("prompts", "previous"),
    [
        # The second goes on from the first; the third has the same head and another second block.
        ([(1, 2), (1, 2, 3), (1, 4)], [NOBODY, 0, NOBODY]),
        # Only a shared head: nobody's last block of his own, but the first one's.
        ([(1,), (1, 2), (1, 3)], [NOBODY, 0, NOBODY]),
        # Who goes on from the same turn later begins anew.
        ([(1, 2), (1, 2, 3), (1, 2, 4), (1, 2, 3, 5)], [NOBODY, 0, NOBODY, 1]),
        # The longest prompt counts, not the first found.
        ([(1, 2), (1, 2, 3), (1, 2, 3, 4)], [NOBODY, 0, 1]),
        ([(), (1,), ()], [NOBODY, NOBODY, NOBODY]),
    ],
)
def test_conversations_by_their_prompts(prompts, previous):
    assert [*infer_previous(prompts)] == previous


@pytest.mark.parametrize(
    ("name", "found_least"),
    [("tau_airline_smollm2_b16.jsonl.zst", 0.99), ("lmcache_agent_smollm2_b16.jsonl.zst", 0.87)],
)
def test_conversations_by_their_prompts_on_a_trace_that_names_them(name, found_least):
    pytest.importorskip("zstandard", reason="the extra `traces` is not installed")
    trace = open_trace(find_trace(name))
    sessions = [each.session for each in trace.requests()]
    prompts = [each.block_ids[: each.full_blocks(trace.block_tokens)] for each in trace.requests()]
    named, inferred = [*named_previous(sessions)], [*infer_previous(prompts)]
    later = sum(previous != NOBODY for previous in named)
    found = [place for place, previous in enumerate(inferred) if previous != NOBODY]
    right = sum(sessions[place] == sessions[inferred[place]] for place in found)
    assert len(found) >= found_least * later
    assert right >= 0.995 * len(found)


def test_tokens_of_a_request():
    one = Request(time=0, input_tokens=8, output_tokens=1, block_ids=(1, 2))
    # The last token's KV is never computed.
    assert (one.full_blocks(4), one.answered_blocks(4), one.all_blocks(4)) == (2, 2, 3)
