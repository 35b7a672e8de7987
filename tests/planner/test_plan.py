"""A trace played, with figures that were reckoned by hand: a token takes a second, a block a second on a
link."""

import json

import msgspec
import numpy as np
import pytest

from kvstore.core.errors import CheckFailed, ConfigInvalid
from kvstore.core.types import COPY, LOAD, READ, WRITE
from kvstore.planner.machine import Sizes
from kvstore.planner.plan import Outcome, Rules, play
from kvstore.planner.profile import Profile
from kvstore.planner.study import Policies, study
from kvstore.planner.traces import open_trace
from kvstore.planner.workload import load_workload
from tests.planner.made import ROUND, Made, machine, request, sizes
from tests.planner.shared_data import find_trace

OPEN = Rules(closed=False)
CLOSED = Rules(closed=True)
MOONCAKE = "mooncake_conversation.jsonl.zst"


def run(made: Made, tiers: Sizes, rules: Rules = OPEN, profile: Profile = ROUND) -> Outcome:
    return play(load_workload(made), machine(tiers, profile), rules)


def first_tokens(outcome: Outcome) -> list[float]:
    return [round(seconds, 6) for seconds in outcome.first_token_seconds.tolist()]


FORMS = {
    "mooncake": (
        None,
        {"timestamp": 0, "input_length": 9, "output_length": 5, "hash_ids": [1, 2, 3]},
        {"timestamp": 100_000, "input_length": 17, "output_length": 1, "hash_ids": [1, 2, 4, 5, 6]},
        {"timestamp": 200_000, "input_length": 4, "output_length": 0, "hash_ids": [7]},
    ),
    "turns": (
        {"block_size": 4},
        {"sess": 1, "turn": 0, "ts": 0.0, "in": 9, "out": 5, "hash_ids": [1, 2, 3]},
        {"sess": 1, "turn": 1, "ts": 100.0, "in": 17, "out": 1, "hash_ids": [1, 2, 4, 5, 6]},
        {"sess": 2, "turn": 0, "ts": 200.0, "in": 4, "out": 0, "hash_ids": [7]},
    ),
    "kvstore": (
        {"kvstore_trace": 1, "block_tokens": 4},
        {"time": 7.0, "input": 9, "output": 5, "blocks": [1, 2, 3], "session": "a"},
        {"time": 107.0, "input": 17, "output": 1, "blocks": [1, 2, 4, 5, 6], "session": "a"},
        {"time": 207.0, "input": 4, "output": 0, "blocks": [7]},
    ),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("order", [(1, 2, 3), (3, 1, 2)])
def test_each_form_in_any_order_of_times(tmp_path, form, order):
    heading, *lines = FORMS[form]
    path = tmp_path / "trace.jsonl"
    records = [*([heading] if heading else []), *(lines[place - 1] for place in order)]
    path.write_text("\n".join(json.dumps(each) for each in records))
    trace = open_trace(path, 4 if form == "mooncake" else None)
    assert trace.format == form
    outcome = play(load_workload(trace), machine(sizes(gpu=16), ROUND), CLOSED)
    assert (outcome.requests, outcome.blocks_read) == (3, 9)
    # Two full blocks of the first prompt, and the one that its answer filled up.
    assert outcome.blocks_found == (3, 0, 0)
    assert first_tokens(outcome) == [9.0, 5.0, 4.0]


def test_one_request_and_no_end_of_it():
    outcome = run(Made(request(5, [1], tokens=1)), sizes(gpu=1))
    assert (outcome.requests, outcome.blocks_found, outcome.seconds) == (1, (0, 0, 0), 1.0)
    alone = run(Made(request(5, [1, 2])), sizes(gpu=1))
    assert (alone.requests, alone.requests_refused, alone.seconds) == (0, 1, 0.0)


# --------------------------------------------------------------------------------- one tier


def test_the_second_of_two_equal_prompts_computes_its_last_block():
    # 12 tokens, and then the 4 of the last block: one token at least is computed, so that block isn't found.
    made = Made(request(0, [1, 2, 3], output=5), request(100, [1, 2, 3], output=5))
    outcome = run(made, sizes(gpu=16))
    assert first_tokens(outcome) == [12, 4]
    assert outcome.blocks_found == (2, 0, 0)
    assert outcome.tokens_found == (8, 0, 0)
    assert (outcome.blocks_read, outcome.tokens_read) == (6, 24)
    assert outcome.hit_rate == pytest.approx(2 / 6)
    assert (outcome.prefill_seconds, outcome.prefill_seconds_saved) == (16, 8)
    # The last of five tokens comes four seconds after the first.
    assert outcome.seconds == pytest.approx(108)
    assert outcome.gpu_busy_share == pytest.approx(16 / 108)
    assert not any(outcome.bytes_moved.values())


def test_without_reuse_nothing_is_found():
    made = Made(request(0, [1, 2, 3]), request(100, [1, 2, 3]))
    outcome = run(made, sizes(gpu=16), Rules(closed=False, reuse=False))
    assert first_tokens(outcome) == [12, 12]
    assert outcome.hit_rate == 0
    assert outcome.prefill_seconds_saved == 0


def test_prefills_go_one_after_the_other():
    made = Made(request(0, [1, 2]), request(1, [3]), request(2, [4]))
    outcome = run(made, sizes(gpu=16))
    assert first_tokens(outcome) == [8, 11, 14]


def test_what_is_computed_is_found_while_its_answer_runs():
    made = Made(request(0, [1, 2], output=100), request(10, [1, 2, 3]))
    # The shorter one ends first.
    assert first_tokens(run(made, sizes(gpu=64))) == [4, 8]


def test_who_finds_no_room_waits_for_who_runs():
    # The prompt takes 3 of 4 frames until its answer is whole, in second 10 + 1.
    made = Made(request(0, [1, 2, 3], tokens=10, output=2), request(1, [4, 5]))
    outcome = run(made, sizes(gpu=4))
    assert first_tokens(outcome) == [10, 10 + 8]
    assert outcome.wait_seconds.tolist() == [0, 10]
    assert outcome.running_most == 1


def test_no_more_run_than_may():
    made = Made(*(request(0, [number]) for number in range(3)))
    outcome = run(made, sizes(gpu=64), profile=msgspec.structs.replace(ROUND, running_max=1))
    assert outcome.running_most == 1
    assert outcome.wait_seconds.tolist() == [0, 4, 8]


def test_what_never_fits_is_refused_and_its_conversation_goes_on():
    made = Made(request(0, [1, 2, 3, 4], session="a"), request(50, [9], session="a"))
    outcome = run(made, sizes(gpu=3), CLOSED)
    assert (outcome.requests, outcome.requests_refused) == (1, 1)
    # What was refused was read, and not found.
    assert outcome.blocks_read == 5


def test_the_least_recent_goes():
    prompts = ([1, 2], [3, 4], [5, 6], [1, 2])
    made = Made(*(request(100 * place, blocks, tokens=7) for place, blocks in enumerate(prompts)))
    # Of each the full block stays: 1, 3, 5. With two frames for cache 1 has gone, with three it is found.
    assert run(made, sizes(gpu=4)).blocks_found == (1, 0, 0)
    assert run(made, sizes(gpu=3)).blocks_found == (0, 0, 0)


# ----------------------------------------------------------------------------------- loops


def test_in_a_closed_loop_the_next_turn_comes_after_the_answer():
    made = Made(request(0, [1, 2], output=3, session="a"), request(30, [1, 2, 5, 6], session="a"))
    # The answer takes 8 + 3 seconds alone, so 19 of the 30 are thought. It is whole at second 10.
    outcome = run(made, sizes(gpu=16), CLOSED)
    assert first_tokens(outcome) == [8, 8]
    assert outcome.seconds == pytest.approx(10 + 19 + 8)
    assert run(made, sizes(gpu=16), OPEN).seconds == pytest.approx(30 + 8)


def test_an_answer_is_found_by_the_next_turn():
    made = Made(request(0, [1, 2], output=5, session="a"), request(60, [1, 2, 5, 6], session="a"))
    assert run(made, sizes(gpu=16), CLOSED).blocks_found == (3, 0, 0)


# ------------------------------------------------------------------------------ below the GPU


def chat(*times: float) -> list:
    """Two conversations in turns, of two full blocks each, which don't fit the GPU together."""
    return [
        request(
            time, [10 * (place % 2) + 1, 10 * (place % 2) + 2, 100 + place], tokens=9, session=str(place % 2)
        )
        for place, time in enumerate(times)
    ]


def test_what_has_left_the_gpu_is_loaded_from_the_cpu_tier():
    outcome = run(Made(*chat(0, 100, 200)), sizes(gpu=3, cpu=8))
    # Turn 3 is the first conversation's: two blocks, a second each, and then one token.
    assert outcome.blocks_found == (0, 2, 0)
    assert first_tokens(outcome) == [9, 9, 2 + 1]
    assert outcome.bytes_moved[LOAD] == 80
    # Each block once, the part-filled ones not.
    assert outcome.bytes_moved[COPY] == 160


def test_what_has_left_the_cpu_tier_is_read_from_disk():
    outcome = run(Made(*chat(0, 100, 200)), sizes(gpu=3, cpu=2, disk=8))
    assert outcome.blocks_found[2] == 2
    assert outcome.bytes_moved[READ] == 80
    # Each block goes up one link after the other; the second may pass behind the first.
    assert 3 + 1 <= first_tokens(outcome)[2] <= 4 + 1
    assert outcome.bytes_moved[WRITE] == 160
    assert outcome.disk_write_bytes_per_day == pytest.approx(160 / outcome.seconds * 86_400)


def test_the_end_of_a_conversation_that_is_told_makes_room():
    # The first of three conversations is over after its turn: with the hint its blocks are gone, and those of
    # the second are still there when it comes back.
    made = Made(
        request(0, [1, 2, 3], tokens=9, session="a"),
        request(100, [11, 12, 13], tokens=9, session="b"),
        request(200, [21, 22], tokens=5, session="c"),
        request(300, [11, 12, 14], tokens=9, session="b"),
    )
    told = run(made, sizes(gpu=7), Rules(closed=False, hints=True))
    assert told.blocks_found == (2, 0, 0)


# ------------------------------------------------------------------------------------ whole


def test_the_same_again_is_the_same():
    requests = [
        request(7 * place % 50, [place % 5, place % 3, place], session=str(place % 4)) for place in range(60)
    ]
    outcomes = [run(Made(*requests), sizes(gpu=9, cpu=6, disk=12), CLOSED) for _ in range(2)]
    first, second = outcomes
    assert np.array_equal(first.first_token_seconds, second.first_token_seconds)
    assert first.bytes_moved == second.bytes_moved
    assert (first.blocks_found, first.events) == (second.blocks_found, second.events)
    assert first.requests == 60


def test_progress_is_told():
    told: list[int] = []
    made = Made(*(request(place, [place]) for place in range(130)))
    play(load_workload(made), machine(sizes(gpu=8)), OPEN, told.append)
    assert told == [64, 128]


@pytest.mark.parametrize(
    ("given", "field"),
    [({"gpu": 0}, "--gpu"), ({"gpu": 4, "disk": 4}, "--disk")],
)
def test_tiers_that_can_not_be(given, field):
    with pytest.raises(ConfigInvalid) as caught:
        run(Made(request(0, [1])), sizes(**given))
    assert caught.value.field == field


def test_a_tier_smaller_than_a_block():
    with pytest.raises(ConfigInvalid, match="a block of 4 tokens is 40 bytes"):
        run(Made(request(0, [1])), Sizes(gpu_bytes=400, cpu_bytes=39, kv_bytes_per_token=10, block_tokens=4))


def test_a_study():
    made = Made(*chat(0, 100, 200, 300, 400, 500))
    said: set[str] = set()
    done = study(
        load_workload(made),
        sizes(gpu=4, cpu=3),
        ROUND,
        Policies(eviction="lru"),
        OPEN,
        lambda what, _: said.add(what),
    )
    assert done.twice_cpu is not None
    assert done.without.hit_rate == 0
    assert done.outcome.hit_rate <= done.twice_cpu.hit_rate <= done.best_hit_rate <= done.endless_hit_rate
    # Four of six turns find two blocks of three.
    assert done.endless_hit_rate == pytest.approx(8 / 18)
    assert done.outcome.prefill_seconds_saved == pytest.approx(4 * sum(done.outcome.blocks_found))


def test_lru_on_a_real_trace_finds_what_an_independent_replay_found():
    """To half a point: here time passes, answers take room and are found, and what runs stays."""
    pytest.importorskip("zstandard", reason="the extra `traces` is not installed")
    workload = load_workload(open_trace(find_trace(MOONCAKE)))
    tiers = Sizes(gpu_bytes=4_000 * 512, kv_bytes_per_token=1, block_tokens=512)
    outcome = play(workload, machine(tiers, Profile()), OPEN)
    assert outcome.hit_rate == pytest.approx(0.087, abs=0.005)


# ------------------------------------------------------------------------------- long rests

YEAR = 366 * 86_400.0


@pytest.mark.parametrize("tiers", [sizes(gpu=8), sizes(gpu=4, cpu=8, disk=16)])
def test_years_without_a_request_cost_no_more_than_minutes(tiers):
    """Counted in events of the store: of each rest some hundred, and the same comes of it."""
    found, events = [], []
    for gap in (3_600.0, YEAR):
        made = Made(*(request(gap * place, [1, 2, 3, 4 + place % 2], session="a") for place in range(20)))
        outcome = run(made, tiers, CLOSED)
        found.append((outcome.requests, outcome.blocks_found, first_tokens(outcome)))
        events.append(outcome.events)
    assert found[0] == found[1]
    assert max(events) < 20 * 500
    assert found[1][0] == 20
    assert sum(found[1][1]) >= 19 * 3


def test_what_can_never_come_is_a_bug_and_no_endless_loop():
    workload = load_workload(Made(request(0, [1])))
    # In a closed loop it comes after the turn before it, and there is none.
    workload.turns[0].place = 1
    with pytest.raises(CheckFailed, match="nothing is to happen"):
        play(workload, machine(sizes(gpu=4)), CLOSED)
