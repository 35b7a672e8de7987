"""Sequences that have to make room, and what is not worth loading; reckoned by hand: a token takes a second
to compute, and one to decode."""

import msgspec
import pytest

from kvstore.core.config import transfer_blocks, write_blocks
from kvstore.core.ports import Departure, Use
from kvstore.core.types import LOAD
from kvstore.planner.machine import Sizes
from kvstore.planner.plan import Loads, Preemptions, Rules, play
from kvstore.planner.profile import LinkProfile, Profile
from kvstore.planner.workload import load_workload
from kvstore.policy.worth import Worth
from tests.planner.made import ROUND, Made, machine, request, sizes

OPEN = Rules(closed=False)


# Where many seconds pass, each of them is a tenth.
TENTH = 0.1


def with_links(block_seconds: float) -> Profile:
    """ROUND in tenths of seconds, with links that take so many for a block."""
    link = LinkProfile(bandwidth_bytes_per_second=40 / (TENTH * block_seconds))
    return msgspec.structs.replace(
        ROUND,
        beta_seconds=TENTH,
        decode_seconds=TENTH,
        gpu_to_cpu=link,
        cpu_to_gpu=link,
        cpu_to_disk=link,
        disk_to_cpu=link,
    )


# ------------------------------------------------------------------------------ preemption


def test_the_latest_makes_room_and_comes_back_when_another_has_left():
    # Both grow at second 8, when one block is free. The first has three from then on and ends at 12; the
    # second computes its four tokens again, from then to 16, and decodes eight more.
    made = Made(request(0, [1], output=9), request(0, [2], output=9))
    outcome = play(load_workload(made), machine(sizes(gpu=4)), OPEN)
    assert outcome.first_token_seconds.tolist() == [4, 8]
    assert outcome.seconds == pytest.approx(24)
    assert outcome.preemptions == Preemptions(count=1, swapped=0, dropped=1, dropped_for_room=0)
    assert (outcome.prefill_seconds, outcome.prefill_seconds_again) == (12, 4)


def test_nobody_new_overtakes_one_who_was_preempted():
    first, second, third = request(0, [1], output=9), request(0, [2], output=9), request(9, [3, 4])
    outcome = play(load_workload(Made(first, second, third)), machine(sizes(gpu=4)), OPEN)
    assert outcome.preemptions.count == 1
    # The third could have had the two blocks that the second has left. It is computed behind that one, from
    # 16 to 24, and ends before it.
    assert outcome.first_token_seconds.tolist() == [4, 24 - 9, 8]


def crowded(*before) -> Made:
    """Two of 68 tokens, of which one has to go; its answer takes the other until far later."""
    return Made(*before, *(request(TENTH * 260, range(start, start + 17), output=81) for start in (100, 200)))


# So many prefills have to be known before costs count.
KNOWN = tuple(request(TENTH * 20 * place, [place], tokens=1 + place % 4) for place in range(1, 11))


@pytest.mark.parametrize(
    ("swap", "block_seconds", "swapped"),
    [("cost", 0.01, True), ("cost", 30.0, False), ("length", 10.0, True)],
)
def test_what_costs_less_is_chosen(swap, block_seconds, swapped):
    # 17 blocks out and in, or 68 seconds of prefill, ten times as dear while the GPU is busy. By length, what
    # is above 64 tokens is swapped.
    tiers, profile = sizes(gpu=38, cpu=80), with_links(block_seconds)
    outcome = play(load_workload(crowded(*KNOWN)), machine(tiers, profile, swap=swap), OPEN)
    preempted = outcome.preemptions
    assert preempted.count >= 1
    assert (preempted.swapped, preempted.dropped) == (
        (preempted.count, 0) if swapped else (0, preempted.count)
    )
    assert outcome.requests == len(KNOWN) + 2


def test_before_costs_are_known_the_length_decides():
    outcome = play(load_workload(crowded()), machine(sizes(gpu=38, cpu=80), with_links(10.0)), OPEN)
    assert outcome.preemptions.swapped == outcome.preemptions.count >= 1


def test_without_a_tier_below_a_swap_is_a_drop_for_want_of_room():
    outcome = play(load_workload(crowded()), machine(sizes(gpu=38)), OPEN)
    assert outcome.preemptions.dropped_for_room == outcome.preemptions.count >= 1


@pytest.mark.parametrize("growth_tokens", [4, 12, 24])
def test_all_are_served_however_small_the_gpu(growth_tokens):
    made = Made(
        *(request(TENTH * place, [place, 100 + place], output=1 + 7 * (place % 5)) for place in range(15))
    )
    for tiers in (sizes(gpu=10), sizes(gpu=10, cpu=4), sizes(gpu=10, cpu=30, disk=60)):
        for swap in ("cost", "length"):
            profile = msgspec.structs.replace(with_links(1.0), growth_tokens=growth_tokens)
            outcome = play(load_workload(made), machine(tiers, profile, swap=swap), OPEN)
            assert outcome.requests == 15
            assert outcome.preemptions.count > 0
            assert outcome.preemptions.count == outcome.preemptions.swapped + outcome.preemptions.dropped


def test_a_swap_in_may_be_told_of_before_it_has_ended():
    """Who had left before it was asked has a notice to come, which tells of the way back by then."""
    made = Made(
        *(
            request(
                TENTH * 9 * place,
                [1, 2, *range(100 * place + 1, 100 * place + 12 + place % 5)],
                tokens=4 * (13 + place % 5) - place % 4,
                output=60 + 37 * place % 90,
            )
            for place in range(24)
        )
    )
    tiers, profile = sizes(gpu=60, cpu=900), with_links(0.02)
    outcome = play(load_workload(made), machine(tiers, profile, swap="length"), OPEN)
    assert outcome.requests == 24
    assert outcome.preemptions.swapped > 0


# ------------------------------------------------------------------------------------ loads


@pytest.mark.parametrize(
    ("block_seconds", "loads", "loaded_bytes", "seconds"),
    [(1.0, Loads(whole=1, cut=0), 80, 2 + 1), (10.0, Loads(whole=0, cut=1), 0, 9)],
)
def test_what_is_cheaper_to_compute_is_not_loaded(block_seconds, loads, loaded_bytes, seconds):
    # Two blocks are in the CPU tier: four seconds of prefill each.
    heads = [1000, 1010, 1000]
    turns = [
        request(TENTH * (260 + 200 * place), [head, head + 1, 2000 + place], tokens=9)
        for place, head in enumerate(heads)
    ]
    tiers = sizes(gpu=3, cpu=40)
    outcome = play(load_workload(Made(*KNOWN, *turns)), machine(tiers, with_links(block_seconds)), OPEN)
    assert outcome.loads == loads
    assert outcome.bytes_moved[LOAD] == loaded_bytes
    assert outcome.first_token_seconds[-1] == pytest.approx(TENTH * seconds)


# ------------------------------------------------------------------------- what is learnt


def test_prefill_is_learnt_from_the_steps_that_are_told():
    profile = msgspec.structs.replace(with_links(1.0), alpha_seconds=0.05, gamma_seconds=0.025)
    played = machine(sizes(gpu=64, cpu=64), profile)
    made = Made(*(request(20 * place, range(place, place + 1 + place % 9)) for place in range(40)))
    play(load_workload(made), played, OPEN)
    departure = Departure(time=played.time, tokens=40, blocks_out=10, blocks_in=10)
    told = dict(played.store.swap_policy.leave(departure).inputs)
    assert told["alpha_seconds"] == pytest.approx(0.05, rel=0.05)
    assert told["beta_seconds"] == pytest.approx(0.1, rel=0.02)
    assert told["gamma_seconds"] == pytest.approx(0.025, rel=0.02)
    assert told["gpu_to_cpu_bytes_per_second"] == pytest.approx(400)


class Told(Worth):
    """Remembers the uses that it is told."""

    def __init__(self) -> None:
        self.uses: list[Use] = []

    def use(self, use: Use) -> None:
        self.uses.append(use)
        super().use(use)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("hints", [True, False])
@pytest.mark.parametrize("gpu", [8, 100])
def test_each_request_is_told_to_worth_once_and_as_the_trace_has_it(named, hints, gpu):
    """Whether sessions are named or found by comparing prompts, and whether it was preempted meanwhile."""
    made = Made(
        *(
            request(
                TENTH * (40 * turn + 3 * chat),
                [10 * chat, *range(10 * chat + 1, 10 * chat + 1 + turn)],
                tokens=4 * turn + 3,
                output=5 + chat,
                session=f"chat {chat}" if named else "",
            )
            for turn in range(1, 4)
            for chat in range(1, 5)
        )
    )
    workload, policy = load_workload(made), Told()
    outcome = play(
        workload, machine(sizes(gpu=gpu, cpu=40), with_links(1.0), policy), Rules(closed=False, hints=hints)
    )
    assert outcome.requests == 12
    assert (outcome.preemptions.count > 0) is (gpu < 10)
    assert sorted((use.prompt_tokens, use.answer_tokens) for use in policy.uses) == sorted(
        # A prompt is what was asked for at first: with the one token that its last block has room for. The
        # last token of an answer is never written.
        (turn.input_tokens + 1, turn.output_tokens - 2)
        for turn in workload.turns
    )


# ------------------------------------------------------------------------- as the service


@pytest.mark.parametrize("block_bytes", [4096, 2 << 20, 64 << 20])
def test_what_moves_at_once_is_what_the_service_has_it_be(block_bytes):
    tiers = Sizes(
        gpu_bytes=1 << 32,
        cpu_bytes=1 << 33,
        disk_bytes=1 << 34,
        kv_bytes_per_token=block_bytes // 16,
        block_tokens=16,
    )
    config, cpu = tiers.store_config(), tiers.frames[1]
    # But for large blocks, which would cost an event each.
    assert config.transfer_blocks_max == max(8, transfer_blocks(block_bytes))
    assert config.write_blocks_max == max(8, write_blocks(block_bytes, cpu))
