"""Swap OUT and IN: what is kept, where it waits, what comes back."""

import pytest

from kvstore.core.operations import SwapResult, UpdateActivityResult
from kvstore.core.types import Activity, Outcome, SequenceState, SwapMode, Tier
from tests.core.caller import Caller, moves
from tests.core.ops import activity, allocate, commit, fork, free, swap_in, swap_out
from tests.core.shadow import CopyFrame, WriteTokens
from tests.core.world import World, keys_of, make_store, text

RESIDENT, OUT = SequenceState.RESIDENT, SequenceState.SWAPPING_OUT
SWAPPED, IN, DROPPED = SequenceState.SWAPPED, SequenceState.SWAPPING_IN, SequenceState.DROPPED


def caller_of(**sizes: int) -> Caller:
    return Caller(World(make_store(**({"gpu_frames": 8, "cpu_frames": 8} | sizes))))


def written(caller: Caller, sequence: int, token_count: int) -> tuple[int, ...]:
    """A sequence of private, part-filled content."""
    tokens = text(sequence, token_count)
    caller.allocate(sequence, token_count)
    caller.write(caller.table(sequence), tokens)
    return tokens


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


# ---------------------------------------------------------------------------- cancelled


def test_back_in_before_a_byte_has_moved_is_resident_at_once() -> None:
    caller = caller_of()
    tokens = written(caller, 1, 10)
    table = caller.table(1)
    caller.one(SwapResult, swap_out(1, 10), completed=0)
    result = caller.one(SwapResult, swap_in(1), completed=0)
    assert (result.outcome, result.state, result.block_table) == (Outcome.OK, RESIDENT, table)
    assert result.valid_tokens == 10
    caller.step()
    assert not caller.world.under_way
    assert caller.world.free_frames()[:2] == (5, 8)
    caller.read(table, tokens)


def test_out_and_in_in_one_step_cancel() -> None:
    caller = caller_of()
    written(caller, 1, 10)
    table = caller.table(1)
    out, back = caller.step(swap_out(1, 10), swap_in(1), completed=0).results
    assert isinstance(out, SwapResult)
    assert isinstance(back, SwapResult)
    assert (out.state, back.state, back.block_table) == (OUT, RESIDENT, table)


def test_back_in_while_a_copy_runs_waits_for_its_end() -> None:
    caller = caller_of()
    tokens = written(caller, 1, 10)
    table = caller.table(1)
    caller.swap_out(1, 10)
    assert caller.world.under_way
    result = caller.swap_in(1)
    assert (result.outcome, result.state) == (Outcome.OK, IN)
    caller.world.drain()
    (move,) = moves(caller.step().notices)
    assert (move.state, move.block_table, move.valid_tokens) == (RESIDENT, table, 10)
    assert caller.world.free_frames()[:2] == (5, 8)
    caller.read(table, tokens)


def test_back_in_while_a_copy_of_published_blocks_runs_need_not_wait() -> None:
    """Nobody writes to them any more."""
    caller = caller_of()
    caller.begin(1, text(1, 8))
    caller.swap_out(1, 8)
    assert caller.world.under_way
    assert caller.swap_in(1).state is RESIDENT
    caller.world.drain()
    assert caller.state(1) is RESIDENT


def test_a_cancelled_swap_may_be_asked_for_again() -> None:
    caller = caller_of()
    tokens = written(caller, 1, 10)
    for _ in range(3):
        caller.step(swap_out(1, 10))
        caller.step(swap_in(1))
        caller.world.drain()
        caller.step()
    caller.step(swap_out(1, 10))
    caller.world.drain()
    caller.step(swap_in(1))
    caller.world.drain()
    caller.read(caller.table(1), tokens)


def test_a_copy_asked_for_before_a_cancel_does_not_run_before_the_next_fence() -> None:
    """Row 1.14: bytes are copied only after the work that writes them."""
    caller = caller_of(gpu_frames=16, cpu_frames=16, transfer_blocks_max=1)
    world = caller.world
    written(caller, 1, 8)
    written(caller, 2, 6)
    caller.step(swap_out(1, 8))
    assert len(world.under_way) == 2, "the link is busy"
    caller.step(swap_out(2, 6))
    assert caller.swap_in(2).state is RESIDENT
    caller.step(allocate(2, 7))
    number = caller.step_number
    world.enqueue(1, number, WriteTokens(caller.table(2), text(2, 7), 6, 7))
    caller.step(swap_out(2, 7), completed=number - 1)
    world.drain()
    assert caller.state(2) is OUT


def test_a_swap_cancelled_while_another_copies_a_shared_block_comes_back() -> None:
    caller = caller_of(gpu_frames=16, cpu_frames=16)
    world = caller.world
    written(caller, 1, 6)
    caller.step(fork(1, 2))
    caller.step(swap_out(1, 6))
    number = caller.step_number
    caller.step(allocate(2, 9))
    caller.step(swap_out(2, 9), completed=number)
    caller.step(swap_in(2), completed=number)
    for _ in range(3):
        world.drain()
        caller.step()
    assert caller.state(2) is RESIDENT


# ------------------------------------------------------------------------ freed midway


@pytest.mark.parametrize("stage", range(7))
def test_case_2_13_free_at_every_stage_gives_everything_back(stage: int) -> None:
    caller = caller_of(disk_frames=4)
    world = caller.world
    written(caller, 1, 10)
    if stage >= 1:
        caller.step(swap_out(1, 10), completed=0)  # Fence not passed.
    if stage >= 2:
        caller.step()  # Copy begun.
    if stage >= 3:
        caller.step(swap_in(1))  # Cancelled late.
    if stage >= 4:
        world.drain()
        caller.step(swap_out(1, 10))
        world.drain()  # Swapped.
    if stage >= 5:
        caller.step(swap_in(1))  # Loading.
    if stage >= 6:
        world.drain()  # Resident again.
    caller.step(free(1))
    caller.step()
    world.drain()
    assert world.free_frames() == (8, 8, 4)
    assert not moves(caller.step().notices), "nothing is told of a sequence that is gone"


@pytest.mark.parametrize("stage", range(4))
def test_an_engine_that_dies_midway_leaves_nothing_held(stage: int) -> None:
    caller = caller_of()
    world = caller.world
    written(caller, 1, 10)
    if stage >= 1:
        caller.step(swap_out(1, 10), completed=0)
    if stage >= 2:
        caller.step()
    if stage >= 3:
        world.drain()
        caller.step(swap_in(1))
    caller.close_tethers()
    world.drain()
    assert world.free_frames()[:2] == (8, 8)
    world.check_nothing_held()


def test_a_turn_may_be_committed_and_freed_while_it_is_swapped() -> None:
    """One step ahead: its fence passes after the free."""
    caller = caller_of(gpu_frames=16, cpu_frames=16)
    tokens = written(caller, 1, 10)
    caller.swap_out(1, 10)
    caller.world.drain()
    number = caller.step_number
    caller.step(completed=number)
    caller.step(commit(1, keys_of(tokens)), free(1), completed=number)
    caller.step()
    found = caller.allocate(2, 11, keys_of(tokens))
    caller.world.drain()
    caller.read(caller.table(2), tokens[: found.cached_tokens])


@pytest.mark.parametrize("freed", [False, True])
def test_what_a_swapped_sequence_commits_is_found(freed: bool) -> None:
    caller = caller_of()
    tokens = written(caller, 1, 10)
    caller.swap_out(1, 10)
    caller.world.drain()
    caller.step(commit(1, keys_of(tokens)))
    if freed:
        caller.step(free(1))
    assert caller.lookup(keys_of(tokens)).blocks_by_tier == (0, 2, 0)
    assert caller.world.free_frames()[1] == (6 if freed else 5)


# --------------------------------------------------------------- moved by the store


def test_a_sequence_told_idle_before_it_was_resident_is_moved_only_when_it_rests() -> None:
    caller = caller_of(drop_tokens_max=0)
    tokens = written(caller, 1, 10)
    caller.rest(1, 10)
    caller.allocate(2, 32)
    assert caller.state(1) is OUT
    caller.world.drain()
    assert caller.state(1) is SWAPPED
    caller.step(free(2))
    caller.step(activity(1, Activity.RUNNING))
    caller.world.drain()
    caller.read(caller.table(1), tokens)
    caller.allocate(2, 32)
    assert caller.state(1) is RESIDENT, "it runs"


def test_what_allocate_told_to_run_is_not_moved_by_the_store() -> None:
    """OK, RESIDENT: run it. An engine that told a waiting sequence's activity has nothing more to say."""
    caller = caller_of()
    tokens = text(1, 16)
    caller.cache(tokens)
    caller.world.drain()
    caller.allocate(5, 32)
    caller.allocate(1, 17, keys_of(tokens))
    caller.rest(1, 0)
    caller.step(free(5))
    caller.allocate(1, 17)
    caller.world.drain()
    caller.step()
    assert caller.state(1) is RESIDENT
    caller.allocate(2, 16)
    assert caller.state(1) is RESIDENT


def test_of_equal_priority_parked_goes_before_waiting_and_long_rest_before_short() -> None:
    order = []
    for token_count in (4, 8, 12, 16):
        caller = caller_of(gpu_frames=4, cpu_frames=16, drop_tokens_max=0)
        for sequence in (1, 2, 3, 4):
            written(caller, sequence, 4)
        caller.step(
            activity(1, Activity.WAITING, 4, 5.0),
            activity(2, Activity.WAITING, 4, 50.0),
            activity(3, Activity.PARKED, 4, 5.0),
            activity(4, Activity.PARKED, 4, 50.0),
        )
        caller.allocate(9, token_count)
        order.append([i for i in (1, 2, 3, 4) if caller.state(i) is not RESIDENT])
    assert order == [[4], [3, 4], [2, 3, 4], [1, 2, 3, 4]]


def test_what_rests_and_runs_again_in_time_is_not_moved() -> None:
    caller = caller_of()
    written(caller, 1, 10)
    caller.rest(1, 10)
    caller.step(activity(1, Activity.RUNNING))
    caller.allocate(2, 32)
    assert caller.state(1) is RESIDENT
    assert caller.world.store.memory.pools[Tier.GPU].free_count == 5


def test_a_cancel_does_not_stop_the_copy_of_a_block_that_another_has_offered() -> None:
    caller = caller_of(gpu_frames=16, cpu_frames=16, transfer_blocks_max=1)
    tokens = written(caller, 1, 6)
    caller.step(fork(1, 2))
    written(caller, 3, 8)
    caller.step(swap_out(3, 8))
    assert len(caller.world.under_way) == 2, "the link is busy"
    caller.step(swap_out(1, 6), swap_out(2, 6))
    assert caller.swap_in(2).state is RESIDENT
    caller.world.drain()
    assert (caller.state(1), caller.state(2)) == (SWAPPED, RESIDENT)
    caller.step(swap_in(1))
    caller.world.drain()
    caller.read(caller.table(1), tokens)


def test_a_copy_queued_twice_does_not_run_before_the_fence_of_a_later_swap() -> None:
    caller = caller_of(gpu_frames=16, cpu_frames=16, transfer_blocks_max=1)
    world = caller.world
    for sequence, token_count in ((2, 2), (3, 4), (4, 24), (5, 4)):
        written(caller, sequence, token_count)
    caller.step(swap_out(3, 4), swap_out(5, 4))
    first, _ = world.under_way
    caller.step(swap_out(2, 2))
    caller.step(swap_in(2))
    caller.step(swap_out(4, 24))
    caller.step(swap_out(2, 2))
    world.end(first)
    world.end(world.under_way[-1])
    assert caller.state(2) is SWAPPED
    caller.step(swap_in(2))
    (load,) = world.moving(Tier.CPU, Tier.GPU)
    world.end(load)
    assert caller.state(2) is RESIDENT
    caller.step(allocate(2, 3))
    number = caller.step_number
    world.enqueue(1, number, WriteTokens(caller.table(2), text(2, 3), 2, 3))
    caller.step(swap_out(2, 3), completed=number - 1)
    world.drain()
    assert caller.state(2) is OUT


def test_a_tail_that_a_copy_still_reads_is_not_written_in_place() -> None:
    """The sharer that was being swapped out is freed; its copy runs on, and must not pass for the other's."""
    caller = caller_of(gpu_frames=16, cpu_frames=16)
    world = caller.world
    written(caller, 1, 6)
    caller.step(fork(1, 2))
    caller.step(swap_out(2, 6))
    (old,) = world.under_way
    caller.step(free(2))
    answer = caller.step(allocate(1, 7))
    for copy in answer.copies:
        world.shadow.execute(CopyFrame(copy.source, copy.target))
    caller.write(caller.table(1), text(1, 7), 6)
    caller.step(swap_out(1, 7))
    # What the old copy has read.
    for block, frame in enumerate(old.transfer.target_frames):
        world.shadow.fill(Tier.CPU, frame, block, text(1, 6)[4 * block : 4 * block + 4])
    old.done = True
    world.drain()
    caller.step(swap_in(1))
    world.drain()
    caller.read(caller.table(1), text(1, 7))


def test_a_copy_that_fails_after_a_commit_publishes_nothing_that_is_gone() -> None:
    """Committed while its copy runs; the copy fails before the commit's fence has passed."""
    caller = caller_of()
    tokens = written(caller, 1, 10)
    caller.swap_out(1, 10)
    caller.step(commit(1, keys_of(tokens)), completed=1)
    (copy,) = caller.world.under_way
    caller.world.end(copy, failed=[0, 1, 2])
    caller.step()
    found = caller.allocate(2, 11, keys_of(tokens))
    caller.read(caller.table(2), tokens[: found.cached_tokens])
