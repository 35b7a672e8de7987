"""Back in before it is out, freed or dead midway: nothing is lost, torn or held."""

import pytest

from kvstore.core.operations import SwapResult
from kvstore.core.types import Outcome, Tier
from tests.core.caller import moves
from tests.core.ops import allocate, commit, fork, free, swap_in, swap_out
from tests.core.shadow import CopyFrame, WriteTokens
from tests.core.swapped import IN, OUT, RESIDENT, SWAPPED, caller_of, written
from tests.core.world import keys_of, text

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
