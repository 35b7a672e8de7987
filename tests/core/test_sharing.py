"""Fork and copy on write."""

import pytest

from kvstore.core.operations import AllocateResult, ForkResult, Operation, SwapResult, UpdateActivityResult
from kvstore.core.types import Activity, Outcome, Retention, SequenceState
from tests.core.caller import Caller
from tests.core.ops import activity, allocate, commit, fork, free, swap_in, swap_out
from tests.core.shadow import CopyFrame
from tests.core.world import World, keys_of, make_store, text


@pytest.fixture
def caller() -> Caller:
    return Caller(World(make_store(gpu_frames=32, cpu_frames=16)))


def result_of(result: object) -> AllocateResult:
    assert isinstance(result, AllocateResult)
    return result


def test_a_fork_shares_all_blocks_and_takes_none(caller: Caller) -> None:
    caller.allocate(1, 10)
    free_frames = caller.world.free_frames()
    assert caller.one(ForkResult, fork(1, 2)).outcome is Outcome.OK
    assert caller.table(2) == caller.table(1)
    assert caller.world.free_frames() == free_frames


def test_who_allocates_gets_a_tail_of_its_own_and_a_copy(caller: Caller) -> None:
    """Row 3.13: only full blocks stay shared; a write to a shared part-filled block copies."""
    tokens = text(1, 6)
    caller.allocate(1, 6)
    caller.write(caller.table(1), tokens)
    before = caller.table(1)
    caller.step(fork(1, 2))
    answer = caller.step(allocate(2, 7, known_blocks=2))
    result = result_of(answer.results[0])
    (copy,) = answer.copies
    assert (copy.source, copy.target) == (before[1], caller.table(2)[1])
    # The engine knew two blocks, but the second is another one now.
    assert (result.first_block, result.block_table) == (1, (copy.target,))
    caller.world.shadow.execute(CopyFrame(copy.source, copy.target))
    child = (*tokens, 77)
    caller.write(caller.table(2), child, 6)
    caller.read(caller.table(2), child)
    caller.read(before, tokens)


def test_the_last_sharer_keeps_the_tail(caller: Caller) -> None:
    caller.allocate(1, 6)
    caller.step(fork(1, 2))
    assert len(caller.step(allocate(2, 7)).copies) == 1
    assert not caller.step(allocate(1, 7)).copies


def test_when_both_allocate_in_one_step_one_of_them_keeps_the_tail(caller: Caller) -> None:
    caller.allocate(1, 6)
    (shared,) = caller.table(1)[1:]
    caller.step(fork(1, 2))
    answer = caller.step(allocate(1, 7), allocate(2, 7))
    assert [copy.source for copy in answer.copies] == [shared]
    assert sorted([caller.table(1)[1], caller.table(2)[1]]) == sorted([shared, answer.copies[0].target])
    caller.step()
    assert caller.world.free_frames()[0] == 32 - 3


def test_a_sharer_that_is_freed_leaves_the_tail_to_the_other(caller: Caller) -> None:
    caller.allocate(1, 6)
    caller.step(fork(1, 2))
    caller.step(free(2))
    assert not caller.step(allocate(1, 7)).copies


def test_a_sharer_that_is_swapped_out_still_counts_on_the_tail(caller: Caller) -> None:
    tokens = text(1, 6)
    caller.allocate(1, 6)
    caller.write(caller.table(1), tokens)
    caller.step(fork(1, 2))
    caller.step(swap_out(2, 6))
    caller.world.drain()
    assert len(caller.step(allocate(1, 7)).copies) == 1
    caller.step(swap_in(2))
    caller.world.drain()
    caller.read(caller.table(2), tokens)


def test_full_blocks_need_no_copy(caller: Caller) -> None:
    caller.allocate(1, 8)
    caller.step(fork(1, 2))
    answer = caller.step(allocate(1, 9), allocate(2, 9))
    assert not answer.copies
    assert caller.table(1)[:2] == caller.table(2)[:2]


def test_growth_over_a_shared_tail_takes_the_copy_and_the_new_blocks(caller: Caller) -> None:
    caller.allocate(1, 6)
    caller.step(fork(1, 2))
    answer = caller.step(allocate(2, 17, known_blocks=1))
    assert result_of(answer.results[0]).first_block == 1
    assert len(result_of(answer.results[0]).block_table) == 4
    assert len(answer.copies) == 1


def test_growth_of_a_shared_tail_is_all_or_nothing() -> None:
    """Row 2.11: what can't be had whole changes nothing."""
    caller = Caller(World(make_store(gpu_frames=3)))
    caller.allocate(1, 6)
    caller.step(fork(1, 2))
    answer = caller.step(allocate(2, 9))
    result = result_of(answer.results[0])
    assert (result.outcome, result.state) == (Outcome.LATER, SequenceState.RESIDENT)
    assert not answer.copies
    assert result.frames_short == 1
    assert caller.world.free_frames()[0] == 1


def test_64_children_share_one_prompt(caller: Caller) -> None:
    caller.allocate(1, 6)
    children = range(2, 66)
    caller.step(fork(1, *children))
    assert caller.world.free_frames()[0] == 30
    caller.step(free(1, *children))
    caller.step()
    assert caller.world.free_frames()[0] == 32


def test_children_of_children(caller: Caller) -> None:
    caller.allocate(1, 6)
    caller.step(fork(1, 2))
    caller.step(fork(2, 3), fork(1, 4))
    answer = caller.step(*(allocate(each, 7) for each in (1, 2, 3, 4)))
    assert len(answer.copies) == 3
    assert len({caller.table(each)[1] for each in (1, 2, 3, 4)}) == 4


def test_a_fork_of_what_is_not_resident_is_later(caller: Caller) -> None:
    caller.allocate(1, 8)
    caller.step(swap_out(1, 8))
    assert caller.one(ForkResult, fork(1, 2)).outcome is Outcome.LATER
    caller.world.drain()
    assert caller.one(ForkResult, fork(1, 3)).outcome is Outcome.LATER
    caller.step(swap_in(1))
    assert caller.one(ForkResult, fork(1, 4)).outcome is Outcome.LATER
    caller.world.drain()
    assert caller.one(ForkResult, fork(1, 5)).outcome is Outcome.OK
    assert set(caller.world.store.membership.engines[caller.id].sequences) == {1, 5}


def test_a_child_that_exists_is_left_as_it_is(caller: Caller) -> None:
    caller.allocate(1, 8)
    caller.allocate(2, 4)
    table = caller.table(2)
    assert caller.one(ForkResult, fork(1, 2, 3)).outcome is Outcome.OK
    assert caller.table(2) == table
    assert caller.table(3) == caller.table(1)


def test_a_child_commits_what_its_parent_had_not(caller: Caller) -> None:
    tokens = text(1, 8)
    caller.allocate(1, 8)
    caller.step(commit(1, keys_of(tokens)[:1]))
    caller.step(fork(1, 2))
    caller.step(commit(2, keys_of(tokens)))
    caller.step(commit(1, keys_of(tokens)))
    caller.step(free(1, 2))
    caller.step()
    assert caller.lookup(keys_of(tokens)).blocks_cached == 2


def test_case_2_05_a_second_free_is_no_news_and_counts_stay_right(caller: Caller) -> None:
    caller.allocate(1, 8)
    caller.step(fork(1, 2))
    caller.step(free(1, 1), free(1))
    caller.step(free(1))
    assert caller.world.free_frames()[0] == 30
    caller.step(free(2))
    caller.step(free(2))
    assert caller.world.free_frames()[0] == 32


def test_case_2_01_any_order_of_letting_go_ends_in_the_free_list_once() -> None:
    """References of two sequences, a claim and a pin on one block, let go in every order."""
    for order in ("fof", "off", "ffo"):
        world = World(make_store(gpu_frames=4, cpu_frames=4))
        caller = Caller(world)
        caller.allocate(1, 8)
        caller.step(fork(1, 2))
        caller.step(swap_out(1, 8))
        victims = iter((1, 2))
        for letter in order:
            if letter == "o":
                world.drain()
            else:
                caller.step(free(next(victims)))
        world.drain()
        caller.step()
        assert world.free_frames()[:2] == (4, 4), order


@pytest.mark.parametrize("parent_first", [True, False])
def test_what_a_fork_shares_is_not_discarded_with_one_of_the_two(parent_first: bool) -> None:
    """Discarded are blocks that only this sequence ever used; the other's go to disk as they should."""
    caller = Caller(World(make_store(cpu_frames=8, disk_frames=8)))
    caller.begin(1, text(1, 12), session="chat")
    caller.step(fork(1, 2), allocate(2, 15))
    frees = [free(1, retention=Retention.SESSION), free(2, retention=Retention.DISCARD)]
    for operation in frees if parent_first else frees[::-1]:
        caller.step(operation)
    caller.step()
    caller.world.drain()
    assert caller.lookup(keys_of(text(1, 12))).blocks_cached == 3
    assert caller.world.free_frames()[2] == 8 - 3


@pytest.mark.parametrize(
    "use",
    [activity(2, Activity.PARKED), activity(2, Activity.RUNNING), swap_out(2), swap_in(2), fork(2, 3)],
    ids=lambda operation: type(operation).__name__,
)
def test_a_child_of_a_parent_that_the_store_has_moved_may_be_named_in_the_same_step(
    caller: Caller, use: Operation
) -> None:
    """The store moves sequences by itself, so its engine can't know: the child was not made, and waits."""
    caller.allocate(1, 8)
    caller.step(swap_out(1, 8))
    forked, used = caller.step(fork(1, 2), use).results
    assert isinstance(forked, ForkResult)
    assert forked.outcome is Outcome.LATER
    assert isinstance(used, ForkResult | SwapResult | UpdateActivityResult)
    assert used.outcome is Outcome.LATER
    caller.world.drain()


def test_two_that_share_all_blocks_may_be_freed_by_one_operation(caller: Caller) -> None:
    before = caller.world.free_frames()
    caller.allocate(1, 8)
    caller.step(fork(1, 2))
    caller.step(free(1, 2))
    caller.step()
    assert caller.world.free_frames() == before


def test_a_block_is_found_under_one_key_only(caller: Caller) -> None:
    """An engine that breaks the rules has written two texts to one block: neither is another's to find."""
    first, second = keys_of(text(1, 8)), keys_of(text(2, 8))
    caller.allocate(1, 8)
    caller.step(fork(1, 2))
    caller.step(commit(1, first[:1]), commit(2, second))
    caller.step(commit(1, first))
    caller.step()
    assert caller.lookup(first).blocks_cached == 2
    assert caller.lookup(second).blocks_cached == 0
    caller.step(free(1, 2))
    caller.step()
    assert caller.lookup(first).blocks_cached == 2


def test_many_children_that_end_together_are_copied_down_once() -> None:
    caller = Caller(World(make_store(gpu_frames=32, cpu_frames=4, transfer_blocks_max=2)))
    caller.begin(1, text(1, 32))
    caller.step(fork(1, *range(2, 18)))
    caller.step(free(*range(1, 18)))
    caller.step()
    caller.world.drain()
    assert caller.world.store.usage().tiers[1].blocks_moved_in <= 8
