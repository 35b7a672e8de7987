"""Swap OUT and IN: what is kept, where it waits, what comes back."""

import pytest

from kvstore.core.operations import SwapResult, UpdateActivityResult
from kvstore.core.types import Activity, Outcome, SequenceState, SwapMode
from tests.core.caller import moves
from tests.core.ops import activity, allocate, fork, free, swap_in, swap_out
from tests.core.swapped import DROPPED, IN, OUT, RESIDENT, SWAPPED, caller_of, written
from tests.core.world import keys_of, text

# -------------------------------------------------------------------- keep, drop, auto


@pytest.mark.parametrize(
    ("mode", "token_count", "state", "chosen"),
    [
        (SwapMode.KEEP, 4, OUT, "swap"),
        (SwapMode.KEEP, 16, OUT, "swap"),
        (SwapMode.DROP, 16, DROPPED, "drop"),
        (SwapMode.AUTO, 8, DROPPED, "drop"),
        (SwapMode.AUTO, 9, OUT, "swap"),
    ],
)
def test_the_mode_decides_or_the_policy_by_length(
    mode: SwapMode, token_count: int, state: SequenceState, chosen: str
) -> None:
    caller = caller_of(drop_tokens_max=8)
    written(caller, 1, token_count)
    result = caller.one(SwapResult, swap_out(1, token_count, mode))
    assert (result.outcome, result.state) == (Outcome.OK, state)
    assert result.decision is not None
    assert (result.decision.kind, result.decision.chosen) == ("swap", chosen)
    assert result.decision.reason == ("by length" if mode is SwapMode.AUTO else "the engine insists")
    assert dict(result.decision.inputs) == {
        "tokens": token_count,
        "drop_tokens_max": 8,
        "block_tokens": 4,
        "room_below": 1.0,
    }


def test_without_room_in_the_cpu_tier_a_swap_becomes_a_drop() -> None:
    caller = caller_of(cpu_frames=2)
    written(caller, 1, 12)
    result = caller.swap_out(1, 12)
    assert result.state is DROPPED
    assert result.decision is not None
    assert dict(result.decision.inputs)["room_below"] == 0.0
    assert caller.world.free_frames()[:2] == (8, 2)


def test_case_3_13_without_a_cpu_tier_preemption_drops_and_nothing_hangs() -> None:
    caller = caller_of(cpu_frames=0)
    written(caller, 1, 32)
    assert caller.swap_out(1, 32).state is DROPPED
    assert caller.allocate(2, 32).outcome is Outcome.OK
    caller.step(free(2))
    result = caller.swap_in(1)
    assert (result.outcome, result.state, result.valid_tokens) == (Outcome.OK, RESIDENT, 0)
    assert len(result.block_table) == 8


def test_swap_out_never_takes_the_frames_kept_for_passage() -> None:
    caller = caller_of(cpu_frames=4, disk_frames=4)
    written(caller, 1, 12)
    assert caller.swap_out(1, 12).state is DROPPED, "two of four frames are kept"
    written(caller, 2, 8)
    assert caller.swap_out(2, 8).state is OUT


def test_swap_out_makes_room_by_evicting_what_is_cached() -> None:
    caller = caller_of(cpu_frames=4)
    caller.cache(text(9, 16))
    caller.world.drain()
    assert caller.world.free_frames()[1] == 0
    tokens = written(caller, 1, 14)
    assert caller.swap_out(1, 14).state is OUT
    caller.world.drain()
    caller.step(swap_in(1))
    caller.world.drain()
    caller.read(caller.table(1), tokens)


def test_what_was_committed_is_kept_whether_named_as_filled_or_not() -> None:
    caller = caller_of()
    caller.begin(1, text(1, 14))
    caller.swap_out(1, 0)
    caller.world.drain()
    assert caller.sequence(1).filled_tokens == 12


# ------------------------------------------------------------------------ there and back


@pytest.mark.parametrize("token_count", [1, 4, 5, 8, 13, 32])
def test_case_1_08_the_same_bytes_at_every_length(token_count: int) -> None:
    caller = caller_of()
    tokens = written(caller, 1, token_count)
    assert caller.swap_out(1, token_count).state is OUT
    caller.world.drain()
    answer = caller.step()
    assert [(move.state, move.valid_tokens) for move in moves(answer.notices)] == [(SWAPPED, token_count)]
    assert caller.world.free_frames()[0] == 8
    result = caller.swap_in(1)
    assert (result.outcome, result.state, result.valid_tokens) == (Outcome.OK, IN, token_count)
    caller.world.drain()
    (move,) = moves(caller.step().notices)
    assert (move.state, move.valid_tokens, move.block_table) == (RESIDENT, token_count, result.block_table)
    caller.read(move.block_table, tokens)


def test_case_1_29_a_swap_brings_other_frames_and_tells_them() -> None:
    caller = caller_of()
    tokens = written(caller, 1, 8)
    before = caller.table(1)
    caller.swap_out(1, 8)
    caller.world.drain()
    caller.allocate(2, 8)
    caller.step(swap_in(1))
    caller.world.drain()
    (move,) = moves(caller.step().notices)
    assert move.block_table == caller.table(1) != before
    caller.read(move.block_table, tokens)


def test_a_part_filled_tail_goes_to_the_cpu_and_its_copy_is_given_back() -> None:
    caller = caller_of(cpu_frames=8, disk_frames=8)
    written(caller, 1, 6)
    caller.swap_out(1, 6)
    caller.world.drain()
    caller.world.tick()
    assert caller.world.free_frames() == (8, 6, 8)
    caller.step(swap_in(1))
    caller.world.drain()
    assert caller.world.free_frames() == (6, 8, 8)


def test_only_the_filled_blocks_are_kept_and_room_for_the_rest_comes_back() -> None:
    caller = caller_of()
    written(caller, 1, 22)
    caller.swap_out(1, 9)
    caller.world.drain()
    assert caller.world.free_frames()[:2] == (8, 5)
    result = caller.swap_in(1)
    assert (len(result.block_table), result.valid_tokens) == (6, 9)
    caller.world.drain()
    caller.read(caller.table(1), text(1, 9))


def test_a_swap_in_of_what_was_dropped_takes_what_is_still_cached() -> None:
    caller = caller_of()
    caller.begin(1, text(1, 14))
    caller.step(swap_out(1, 14, SwapMode.DROP))
    assert caller.world.free_frames()[0] == 5
    result = caller.swap_in(1)
    assert (result.outcome, result.state, result.valid_tokens) == (Outcome.OK, RESIDENT, 12)
    caller.read(result.block_table, text(1, 12))


def test_running_asked_of_a_swapped_sequence_is_a_swap_in() -> None:
    caller = caller_of()
    tokens = written(caller, 1, 10)
    caller.swap_out(1, 10)
    caller.world.drain()
    result = caller.one(UpdateActivityResult, activity(1, Activity.RUNNING))
    assert (result.outcome, result.state) == (Outcome.OK, IN)
    caller.world.drain()
    caller.read(moves(caller.step().notices)[0].block_table, tokens)


def test_running_asked_of_a_dropped_sequence_tells_its_table_in_the_same_answer() -> None:
    caller = caller_of(cpu_frames=0)
    written(caller, 1, 10)
    caller.swap_out(1, 10)
    answer = caller.step(activity(1, Activity.RUNNING))
    (result,) = answer.results
    assert isinstance(result, UpdateActivityResult)
    assert result.state is RESIDENT
    (move,) = moves(answer.notices)
    assert (move.state, move.block_table, move.valid_tokens) == (RESIDENT, caller.table(1), 0)


def test_a_shared_block_is_copied_once_and_comes_back_once() -> None:
    caller = caller_of()
    tokens = written(caller, 1, 10)
    caller.step(fork(1, 2))
    caller.step(swap_out(1, 10), swap_out(2, 10))
    assert [len(each.transfer.source_frames) for each in caller.world.under_way] == [3]
    caller.world.drain()
    assert caller.world.free_frames()[:2] == (8, 5)
    caller.step(swap_in(1), swap_in(2))
    assert [len(each.transfer.source_frames) for each in caller.world.under_way] == [3]
    caller.world.drain()
    assert caller.table(1) == caller.table(2)
    caller.read(caller.table(2), tokens)
    answer = caller.step(allocate(1, 11), allocate(2, 11))
    assert len(answer.copies) == 1


def test_a_copy_that_cached_blocks_have_below_is_not_made_again() -> None:
    caller = caller_of(gpu_frames=16)
    caller.cache(text(1, 16))
    caller.world.drain()
    caller.begin(1, text(1, 18))
    caller.swap_out(1, 18)
    assert [len(each.transfer.source_frames) for each in caller.world.under_way] == [1]


def test_a_sequence_all_of_whose_blocks_are_below_is_swapped_at_once() -> None:
    caller = caller_of(gpu_frames=16)
    caller.cache(text(1, 16))
    caller.world.drain()
    caller.allocate(1, 17, keys_of(text(1, 16)))
    answer = caller.step(swap_out(1, 16))
    (result,) = answer.results
    assert isinstance(result, SwapResult)
    assert result.state is SWAPPED
    assert not caller.world.under_way


@pytest.mark.parametrize("state", [OUT, SWAPPED, DROPPED])
def test_out_asked_again_is_the_same_as_once(state: SequenceState) -> None:
    caller = caller_of()
    written(caller, 1, 10)
    caller.step(swap_out(1, 10, SwapMode.DROP if state is DROPPED else SwapMode.KEEP))
    if state is SWAPPED:
        caller.world.drain()
    result = caller.swap_out(1, 10)
    assert (result.outcome, result.state, result.decision) == (Outcome.OK, state, None)


def test_out_asked_of_what_is_coming_in_is_later() -> None:
    caller = caller_of()
    written(caller, 1, 10)
    caller.swap_out(1, 10)
    caller.world.drain()
    caller.swap_in(1)
    result = caller.swap_out(1, 10)
    assert (result.outcome, result.state) == (Outcome.LATER, IN)


def test_in_asked_again_is_the_same_as_once() -> None:
    caller = caller_of()
    written(caller, 1, 10)
    caller.swap_out(1, 10)
    caller.world.drain()
    first = caller.swap_in(1)
    assert caller.swap_in(1) == first
    assert len(caller.world.under_way) == 1


def test_allocate_within_its_tokens_is_answered_while_a_sequence_comes_in() -> None:
    caller = caller_of()
    written(caller, 1, 10)
    caller.swap_out(1, 10)
    caller.world.drain()
    table = caller.swap_in(1).block_table
    result = caller.allocate(1, 10)
    assert (result.outcome, result.state, result.block_table) == (Outcome.OK, IN, table)
    result = caller.allocate(1, 13)
    assert (result.outcome, result.state) == (Outcome.LATER, IN)


def test_in_asked_of_a_running_sequence_sends_nothing_back_to_be_computed() -> None:
    """valid_tokens: tokens from here on are to be recomputed."""
    caller = caller_of()
    caller.begin(1, text(1, 10))
    result = caller.swap_in(1)
    assert (result.outcome, result.state) == (Outcome.OK, RESIDENT)
    assert result.valid_tokens >= 8
