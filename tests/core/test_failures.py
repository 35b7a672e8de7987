"""Copies and loads that fail: told as what they are, and never anybody's hit."""

import pytest

from kvstore.core.errors import CheckFailed, FieldInvalid
from kvstore.core.events import TransferEnded
from kvstore.core.types import Outcome, SequenceState, Tier, TransferId
from tests.core.caller import Caller, moves
from tests.core.ops import allocate, commit, fork, free, swap_in, swap_out
from tests.core.world import World, keys_of, make_store, text

TOKENS = text(1, 16)
KEYS = keys_of(TOKENS)


def loading(**sizes: int) -> tuple[World, Caller]:
    """Sequence 1 waits for four cached blocks that are on their way up from the CPU."""
    world = World(make_store(**({"gpu_frames": 8, "cpu_frames": 8} | sizes)))
    caller = Caller(world)
    caller.cache(TOKENS)
    world.drain()
    caller.allocate(9, 32)
    caller.step(free(9))
    assert caller.lookup(KEYS).blocks_by_tier == (0, 4, 0)
    result = caller.allocate(1, 17, KEYS)
    assert (result.outcome, result.state, result.tier_tokens) == (
        Outcome.OK,
        SequenceState.SWAPPING_IN,
        (0, 16, 0),
    )
    return world, caller


def test_case_1_05_a_failed_load_is_told_as_fewer_valid_tokens() -> None:
    world, caller = loading()
    (load,) = world.moving(Tier.CPU, Tier.GPU)
    world.end(load, failed=[2])
    (move,) = moves(caller.step().notices)
    assert (move.state, move.valid_tokens) == (SequenceState.RESIDENT, 8)
    assert len(move.block_table) == 5
    caller.read(move.block_table, TOKENS[:8])
    caller.write(move.block_table, TOKENS, 8)


@pytest.mark.parametrize("failed", [[0], [3], [1, 3], [0, 1, 2, 3]])
def test_tokens_are_valid_up_to_the_first_block_that_failed(failed: list[int]) -> None:
    world, caller = loading()
    world.end(world.under_way[0], failed=failed)
    (move,) = moves(caller.step().notices)
    assert move.valid_tokens == failed[0] * 4
    caller.read(move.block_table, TOKENS[: failed[0] * 4])


def test_case_1_20_after_a_failed_load_the_block_and_what_hangs_on_it_is_not_found() -> None:
    world, _ = loading()
    world.end(world.under_way[0], failed=[1])
    assert Caller(world, 2).lookup(KEYS).blocks_cached == 1


def test_what_failed_may_be_computed_and_committed_again() -> None:
    world, caller = loading()
    world.end(world.under_way[0], failed=[1])
    (move,) = moves(caller.step().notices)
    caller.write(move.block_table, TOKENS, 4)
    caller.step(commit(1, KEYS[1:], 1))
    assert caller.lookup(KEYS).blocks_cached == 4


def test_case_2_04_all_who_waited_for_a_failed_load_are_told_and_counts_return() -> None:
    world = World(make_store(gpu_frames=16, cpu_frames=8))
    caller = Caller(world)
    caller.cache(TOKENS)
    world.drain()
    caller.allocate(9, 64)
    caller.step(free(9))
    caller.step(*(allocate(i, 17, KEYS) for i in range(1, 6)))
    (load,) = world.under_way
    world.end(load, failed=[1])
    told = moves(caller.step().notices)
    assert [move.sequence for move in told] == [1, 2, 3, 4, 5]
    for move in told:
        if move.state is SequenceState.RESIDENT:
            assert move.valid_tokens == 4
        else:
            assert (move.state, move.valid_tokens) == (SequenceState.DROPPED, 0)
    caller.step(free(1, 2, 3, 4, 5))
    caller.step()
    world.drain()
    assert world.free_frames()[0] == 16 - 1
    caller.detach()
    world.check_nothing_held()


def test_case_1_39_without_frames_to_compute_into_a_failed_load_ends_as_dropped() -> None:
    """Five sequences share what failed; 16 frames don't hold five copies of it."""
    world = World(make_store(gpu_frames=8, cpu_frames=8))
    caller = Caller(world)
    caller.cache(TOKENS)
    world.drain()
    caller.allocate(9, 32)
    caller.step(free(9))
    caller.step(*(allocate(i, 17, KEYS) for i in (1, 2, 3, 4)))
    world.end(world.under_way[0], failed=[0])
    states = [move.state for move in moves(caller.step().notices)]
    assert SequenceState.DROPPED in states
    assert set(states) <= {SequenceState.DROPPED, SequenceState.RESIDENT}
    caller.step(free(*(i for i in (1, 2, 3, 4) if caller.state(i) is SequenceState.RESIDENT)))
    (left, *_) = caller.world.store.membership.engines[caller.id].sequences
    assert caller.swap_in(left).outcome is Outcome.OK


def test_case_3_03_a_failure_wakes_the_engine_without_other_traffic() -> None:
    world, caller = loading()
    effects = world.end(world.under_way[0], failed=[0])
    assert effects.wake == (caller.id,)
    (move,) = moves(caller.keep_alive().notices)
    assert move.state is SequenceState.RESIDENT


def test_case_3_05_a_block_that_failed_on_one_rank_is_lost_on_all() -> None:
    """The core knows one end of a transfer: good on every rank, or not good."""
    world, caller = loading()
    world.end(world.under_way[0], failed=[3])
    assert caller.lookup(KEYS).blocks_cached == 3


def test_a_failed_copy_down_ends_as_dropped() -> None:
    world = World(make_store(gpu_frames=8, cpu_frames=8))
    caller = Caller(world)
    caller.allocate(1, 10)
    caller.swap_out(1, 10)
    world.end(world.under_way[0], failed=[1])
    (move,) = moves(caller.step().notices)
    assert (move.state, move.valid_tokens) == (SequenceState.DROPPED, 0)
    assert world.free_frames()[:2] == (8, 8)
    assert caller.swap_in(1).valid_tokens == 0


def test_a_failed_copy_down_of_cached_blocks_leaves_them_where_they_were() -> None:
    """Style 32: a failed copy leaves its source as it was."""
    world = World(make_store(gpu_frames=8, cpu_frames=8))
    caller = Caller(world)
    caller.cache(TOKENS)
    world.end(world.under_way[0], failed=[0, 1, 2, 3])
    assert caller.lookup(KEYS).blocks_by_tier == (4, 0, 0)
    assert world.free_frames()[:2] == (4, 8)


def test_a_failed_write_to_disk_leaves_the_copy_above() -> None:
    world = World(make_store(gpu_frames=8, cpu_frames=8, disk_frames=8))
    caller = Caller(world)
    caller.cache(TOKENS, session="s")
    world.end_one()
    (write,) = world.moving(Tier.CPU, Tier.DISK)
    world.end(write, failed=range(4))
    assert caller.lookup(KEYS).blocks_by_tier == (4, 0, 0)
    assert world.free_frames() == (4, 4, 8)
    assert not world.shadow.disk


def test_a_copy_that_fails_after_its_cancel_harms_nobody() -> None:
    world = World(make_store(gpu_frames=8, cpu_frames=8))
    caller = Caller(world)
    caller.allocate(1, 10)
    caller.write(caller.table(1), text(1, 10))
    caller.swap_out(1, 10)
    caller.step(swap_in(1))
    world.end(world.under_way[0], failed=[0])
    (move,) = moves(caller.step().notices)
    assert (move.state, move.valid_tokens) == (SequenceState.RESIDENT, 10)
    caller.read(move.block_table, text(1, 10))


def test_a_load_that_fails_after_its_sequence_was_freed_is_nobodys_hit() -> None:
    world, caller = loading()
    caller.step(free(1))
    world.end(world.under_way[0], failed=[0])
    assert caller.lookup(KEYS).blocks_cached == 0
    assert world.free_frames()[:2] == (8, 8)


def test_a_load_that_ends_well_after_its_sequence_was_freed_is_cached() -> None:
    world, caller = loading()
    caller.step(free(1))
    world.drain()
    assert caller.lookup(KEYS).blocks_cached == 4


def test_case_1_17_what_is_being_loaded_can_be_neither_committed_nor_copied_down() -> None:
    world, caller = loading()
    caller.step(free(1))
    caller.allocate(2, 21, KEYS)
    with pytest.raises(FieldInvalid, match="swapped in"):
        caller.step(commit(2, keys_of(text(1, 20))))
    assert caller.swap_out(2).outcome is Outcome.LATER
    assert not world.moving(Tier.GPU, Tier.CPU)


def test_one_failed_block_of_two_forks_is_made_good_for_both() -> None:
    world = World(make_store(gpu_frames=16, cpu_frames=8))
    caller = Caller(world)
    caller.allocate(1, 10)
    caller.write(caller.table(1), text(1, 10))
    caller.step(fork(1, 2))
    caller.step(swap_out(1, 10), swap_out(2, 10))
    world.drain()
    caller.step(swap_in(1), swap_in(2))
    world.end(world.under_way[0], failed=[1])
    told = moves(caller.step().notices)
    assert [(move.state, move.valid_tokens) for move in told] == [(SequenceState.RESIDENT, 4)] * 2
    assert set(told[0].block_table) & set(told[1].block_table) == {told[0].block_table[0]}
    caller.read(told[1].block_table, text(1, 4))


def test_after_a_failed_load_no_answer_calls_the_lost_tokens_cached() -> None:
    """cached_tokens: leading tokens whose KV is, or is on its way, in the table."""
    world, caller = loading()
    world.end(world.under_way[0], failed=[1])
    caller.step()
    assert caller.allocate(1, 18).cached_tokens <= 4


def test_a_transfer_ends_once() -> None:
    world, _ = loading()
    (load,) = world.under_way
    world.end(load)
    for transfer in (load.transfer.id, TransferId(999)):
        with pytest.raises(CheckFailed, match="ended twice, or never began"):
            world.store.handle(TransferEnded(time=world.time, transfer=transfer))


def test_after_a_write_that_failed_later_turns_still_go_down() -> None:
    """What hangs on the block that is not on disk gives up, and does not hold the CPU tier for ever."""
    caller = Caller(World(make_store(gpu_frames=16, cpu_frames=4, disk_frames=16, transfer_blocks_max=1)))
    world = caller.world
    caller.cache(text(1, 12), session="s")
    while not world.moving(Tier.CPU, Tier.DISK):
        world.end(world.moving(Tier.GPU, Tier.CPU)[0])
    for copy in world.moving(Tier.GPU, Tier.CPU):
        world.end(copy)
    world.end(world.moving(Tier.CPU, Tier.DISK)[0], failed=[0])
    world.drain()
    caller.allocate(90, 64)
    caller.step(free(90))
    caller.step()
    world.drain()
    for number in range(2, 6):
        caller.cache(text(number, 4), session=f"s{number}")
        world.drain()
    assert world.free_frames()[2] == 16 - 4


def test_a_swap_in_of_blocks_that_nobody_can_find_any_more_does_not_fill_the_passage() -> None:
    """They lie on disk, claimed; once loaded, their copies in the CPU tier make way for the next ones."""
    world = World(make_store(gpu_frames=16, cpu_frames=2, disk_frames=16, transfer_blocks_max=1))
    tokens = text(1, 32)
    world.find(tokens)
    caller = Caller(world)
    caller.allocate(1, 33, keys_of(tokens))
    world.drain()
    caller.step(swap_out(1, 32))
    caller.step()
    assert caller.state(1) is SequenceState.SWAPPED
    caller.allocate(90, 64)
    caller.step(free(90))
    caller.step()
    # Another prompt finds that the third block can't be read: it and what hangs on it leave the index.
    caller.allocate(2, 13, keys_of(tokens)[:3])
    while world.under_way:
        moving = world.under_way[0]
        keys = [stored.key for stored in moving.transfer.keys]
        world.end(moving, failed=[0] if keys == [keys_of(tokens)[2]] else [])
    caller.step(free(2))
    caller.step()
    assert caller.lookup(keys_of(tokens)).blocks_cached == 2
    caller.swap_in(1)
    world.drain()
    assert caller.state(1) is SequenceState.RESIDENT
