"""What a step gives up, publishes or offers takes effect when the work before it has completed."""

from kvstore.core.operations import SwapResult
from kvstore.core.types import Outcome, SequenceState, Tier
from tests.core.caller import Caller
from tests.core.ops import allocate, commit, fork, free, swap_out
from tests.core.world import World, keys_of, make_store, text

TOKENS = text(1, 8)
KEYS = keys_of(TOKENS)


def two_engines(**sizes: int) -> tuple[World, Caller, Caller]:
    world = World(make_store(**sizes))
    return world, Caller(world, 1), Caller(world, 2)


def test_a_commit_is_seen_by_others_when_the_step_before_has_completed() -> None:
    _, one, two = two_engines()
    one.allocate(1, 8)
    one.step(completed=0)
    one.step(commit(1, KEYS), completed=1)
    assert two.lookup(KEYS).blocks_cached == 0
    one.keep_alive(completed=1)
    assert two.lookup(KEYS).blocks_cached == 0
    one.keep_alive(completed=2)
    assert two.lookup(KEYS).blocks_cached == 2


def test_a_commit_in_step_n_with_completed_n_minus_1_is_seen_at_once() -> None:
    _, one, two = two_engines()
    one.allocate(1, 8)
    one.step(commit(1, KEYS))
    assert two.lookup(KEYS).blocks_cached == 2


def test_the_engine_itself_uses_its_commit_at_once() -> None:
    """Its own stream orders its reads behind its writes."""
    _, one, two = two_engines()
    one.allocate(1, 8)
    one.step(commit(1, KEYS), completed=0)
    assert one.lookup(KEYS).blocks_cached == 2
    mine = one.allocate(2, 9, KEYS, completed=0)
    assert mine.cached_tokens == 8
    assert mine.block_table[:2] == one.table(1)
    assert two.allocate(1, 9, KEYS).cached_tokens == 0


def test_a_commit_of_an_engine_that_dies_before_its_fence_is_never_seen() -> None:
    world, one, two = two_engines()
    one.allocate(1, 8)
    one.step(commit(1, KEYS), completed=0)
    one.close_tethers()
    assert two.lookup(KEYS).blocks_cached == 0
    assert world.free_frames()[0] == 16


def test_a_commit_before_a_detach_is_seen() -> None:
    """Detach is the engine's word that all its steps have completed."""
    _, one, two = two_engines()
    one.allocate(1, 8)
    one.step(commit(1, KEYS), completed=0)
    one.detach()
    assert two.lookup(KEYS).blocks_cached == 2


def test_free_at_step_n_holds_the_frames_until_n_minus_1_has_completed() -> None:
    world, one, two = two_engines(gpu_frames=4)
    one.allocate(1, 16)
    one.step(completed=0)
    one.step(free(1), completed=1)
    assert world.free_frames()[0] == 0
    result = two.allocate(1, 16)
    assert (result.outcome, result.frames_short) == (Outcome.LATER, 0)
    one.keep_alive(completed=2)
    assert world.free_frames()[0] == 4
    assert two.allocate(1, 16).outcome is Outcome.OK


def test_a_block_that_two_engines_share_is_held_until_both_have_passed() -> None:
    world, one, two = two_engines(gpu_frames=5)
    one.begin(1, text(1, 16))
    assert two.allocate(1, 16, keys_of(text(1, 12))).cached_tokens == 12
    two.step(completed=1)
    blocks = world.store.memory.blocks
    row = one.sequence(1).rows[0]
    one.step(free(1))
    two.step(free(1), completed=1)
    assert (blocks.refs[row], blocks.limbo[row]) == (1, 1)
    third = Caller(world, 3)
    assert third.allocate(1, 20).outcome is Outcome.LATER
    two.keep_alive(completed=2)
    assert third.allocate(1, 20).outcome is Outcome.OK


def test_the_engine_that_used_a_block_first_does_not_free_it_for_the_other() -> None:
    world, one, two = two_engines(gpu_frames=5)
    one.begin(1, text(1, 16))
    two.allocate(1, 16, keys_of(text(1, 12)))
    one.step(free(1))
    one.step()
    # Four blocks in use by the second engine, one cached: room for one.
    result = Caller(world, 3).allocate(1, 5)
    assert (result.outcome, result.frames_short) == (Outcome.LATER, 1)
    two.read(two.table(1), text(1, 12))


def test_the_source_of_a_copy_on_write_is_held_until_the_step_itself_has_completed() -> None:
    world, one, _ = two_engines(gpu_frames=3, cpu_frames=4)
    one.allocate(1, 6)
    one.step(fork(1, 2))
    one.step(swap_out(2, 6))
    world.drain()
    (copy,) = one.step(allocate(1, 7)).copies
    number = one.step_number
    assert copy.target in one.table(1)
    assert copy.source not in one.table(1)
    one.step(completed=number - 1)
    assert world.free_frames()[0] == 0
    one.keep_alive(completed=number)
    assert world.free_frames()[0] == 1


def test_a_swap_out_begins_to_copy_when_the_work_before_it_has_completed() -> None:
    world, one, _ = two_engines(cpu_frames=8)
    one.allocate(1, 8)
    one.step(completed=0)
    result = one.one(SwapResult, swap_out(1, 8), completed=1)
    assert result.state is SequenceState.SWAPPING_OUT
    assert not world.under_way
    one.keep_alive(completed=2)
    assert len(world.moving(Tier.GPU, Tier.CPU)) == 1


def test_a_swap_out_waits_for_a_commit_of_the_same_step() -> None:
    """What is not published yet does not leave: its place in the table must stay."""
    world, one, two = two_engines(cpu_frames=8)
    one.allocate(1, 8)
    one.step(commit(1, KEYS), swap_out(1, 8), completed=0)
    world.drain()
    assert one.state(1) is SequenceState.SWAPPING_OUT
    one.keep_alive(completed=1)
    world.drain()
    assert one.state(1) is SequenceState.SWAPPED
    assert two.lookup(KEYS).blocks_by_tier == (2, 0, 0)


def test_an_engine_has_one_queue() -> None:
    """A copy on write of step n holds up what step n + 1 gives up, and nothing gets lost."""
    world, one, _ = two_engines(gpu_frames=4)
    one.allocate(1, 6)
    one.step(fork(1, 2))
    one.step(allocate(1, 7))
    cow = one.step_number
    one.step(free(1, 2), completed=cow - 1)
    assert world.free_frames()[0] == 1
    one.step(completed=cow)
    assert world.free_frames()[0] == 4


def test_nothing_of_one_engine_waits_for_another() -> None:
    world, one, two = two_engines(gpu_frames=4)
    one.allocate(1, 8)
    two.allocate(1, 8)
    two.step(free(1), completed=0)
    one.step(free(1))
    assert world.free_frames()[0] == 2
    two.keep_alive(completed=1)
    assert world.free_frames()[0] == 4


def test_two_that_share_blocks_and_end_in_two_steps_may_pass_together() -> None:
    caller = Caller(World(make_store(gpu_frames=8)))
    caller.step(allocate(1, 8), completed=0)
    caller.step(fork(1, 2), completed=0)
    caller.step(free(1), completed=0)
    caller.step(free(2), completed=0)
    assert caller.world.free_frames() == (6, 0, 0)
    caller.step()
    assert caller.world.free_frames() == (8, 0, 0)
