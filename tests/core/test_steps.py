"""Exactly once: step numbers, retries, the kept answer."""

import pytest

from kvstore.core.calls import Step
from kvstore.core.errors import FieldInvalid, SequenceUnknown, StepChanged, StepGap, StepMixed
from kvstore.core.operations import AllocateResult, FreeResult, Operation
from kvstore.core.types import Activity, Outcome, SequenceState, StepNumber
from tests.core.caller import Caller
from tests.core.ops import activity, allocate, commit, fork, free, swap_in, swap_out
from tests.core.snapshot import snapshot
from tests.core.world import World, keys_of, make_store, text


@pytest.fixture
def world() -> World:
    return World(make_store(gpu_frames=8, cpu_frames=8))


@pytest.fixture
def caller(world: World) -> Caller:
    return Caller(world)


def step(caller: Caller, number: int, completed: int, *operations: Operation) -> Step:
    return Step(
        time=caller.world.time,
        engine=caller.id,
        step=StepNumber(number),
        completed_step=StepNumber(completed),
        operations=operations,
    )


def test_retry_returns_the_kept_answer_and_changes_nothing(world: World, caller: Caller) -> None:
    event = step(caller, 1, 0, allocate(1, 5))
    first = world.handle(event)
    before = snapshot(world.store)
    world.time += 1.0
    second = world.handle(step(caller, 1, 0, allocate(1, 5)))
    assert second.answer is first.answer
    assert (second.transfers, second.deletes, second.wake) == ((), (), ())
    assert snapshot(world.store) == before


def test_retry_of_a_step_with_copies_takes_no_second_frame(world: World, caller: Caller) -> None:
    caller.allocate(1, 6)
    caller.step(fork(1, 2))
    first = world.handle(step(caller, 3, 2, allocate(1, 7)))
    free_frames = world.free_frames()
    assert world.handle(step(caller, 3, 2, allocate(1, 7))).answer is first.answer
    assert world.free_frames() == free_frames


def test_retry_of_an_older_step_is_a_gap(world: World, caller: Caller) -> None:
    caller.step(allocate(1, 4))
    caller.step()
    with pytest.raises(StepGap, match="the next one is 3"):
        world.handle(step(caller, 1, 0, allocate(1, 4)))


@pytest.mark.parametrize("number", [0, 1, 3, 4])
def test_a_gap_in_step_numbers_is_refused(world: World, caller: Caller, number: int) -> None:
    if number == 1:
        number = 7
    caller.step()
    before = snapshot(world.store)
    with pytest.raises(StepGap):
        world.handle(step(caller, number, 0))
    assert snapshot(world.store) == before


@pytest.mark.parametrize(
    "operations", [(), (allocate(1, 6),), (allocate(1, 5), allocate(2, 5)), (allocate(2, 5),)]
)
def test_a_retry_with_other_operations_is_refused(
    world: World, caller: Caller, operations: tuple[Operation, ...]
) -> None:
    caller.step(allocate(1, 5))
    before = snapshot(world.store)
    with pytest.raises(StepChanged):
        world.handle(step(caller, 1, 0, *operations))
    assert snapshot(world.store) == before


def test_a_retry_with_another_completed_step_is_refused(world: World, caller: Caller) -> None:
    caller.step()
    caller.step(completed=0)
    with pytest.raises(StepChanged):
        world.handle(step(caller, 2, 1))


def test_a_refused_step_uses_up_no_number(world: World, caller: Caller) -> None:
    with pytest.raises(SequenceUnknown):
        world.handle(step(caller, 1, 0, allocate(1, 5), swap_in(9)))
    (result,) = caller.step(allocate(1, 5)).results
    assert isinstance(result, AllocateResult)
    assert result.outcome is Outcome.OK


@pytest.mark.parametrize("completed", [0, 1, 4])
def test_completed_step_never_falls_and_is_before_the_step(
    world: World, caller: Caller, completed: int
) -> None:
    caller.step()
    caller.step()
    caller.step(completed=2)
    with pytest.raises(FieldInvalid, match="completed_step"):
        world.handle(step(caller, 4, completed))


def test_one_step_ahead_is_allowed(caller: Caller) -> None:
    caller.step(completed=0)
    caller.step(completed=0)
    caller.step(completed=1)


def test_an_older_completed_step_in_keep_alive_is_no_error(caller: Caller) -> None:
    caller.step()
    caller.step(completed=1)
    caller.keep_alive(completed=0)
    assert caller.world.store.membership.engines[caller.id].completed_step == 1
    with pytest.raises(FieldInvalid, match="completed_step"):
        caller.keep_alive(completed=3)


def test_unary_calls_and_steps_do_not_mix(world: World) -> None:
    steps, unary = Caller(world, 2), Caller(world, 3)
    steps.step()
    unary.single(allocate(1, 4))
    with pytest.raises(StepMixed):
        steps.single(allocate(1, 4))
    with pytest.raises(StepMixed):
        unary.step()


def test_the_store_numbers_unary_calls_and_what_they_free_is_free_at_once(
    world: World, caller: Caller
) -> None:
    assert caller.single(allocate(1, 8)).step == 1
    assert world.free_frames()[0] == 6
    assert caller.single(free(1)).step == 2
    assert world.free_frames()[0] == 8


def test_results_stand_in_the_order_of_the_operations(caller: Caller) -> None:
    caller.step(allocate(1, 4), allocate(2, 4))
    answer = caller.step(allocate(3, 4), free(2), allocate(1, 8), free(99))
    kinds = [type(result) for result in answer.results]
    assert kinds == [AllocateResult, FreeResult, AllocateResult, FreeResult]


def test_phases_go_by_kind_and_not_by_place(caller: Caller) -> None:
    """A finished turn is committed and freed, a beam forked and its loser freed, in one step."""
    tokens = text(1, 8)
    caller.step(allocate(1, 8), allocate(2, 8))
    caller.step(free(1, 2), fork(2, 3), commit(1, keys_of(tokens)))
    caller.step()
    assert caller.lookup(keys_of(tokens)).blocks_cached == 2
    assert caller.state(3) is SequenceState.RESIDENT


def test_frames_freed_in_a_step_are_granted_in_it_once_the_fence_has_passed(caller: Caller) -> None:
    caller.step(allocate(1, 32))
    result = caller.step(allocate(2, 32), free(1)).results[0]
    assert isinstance(result, AllocateResult)
    assert result.outcome is Outcome.OK


def test_two_operations_on_one_sequence_are_taken_one_after_the_other(caller: Caller) -> None:
    first, second = caller.step(allocate(1, 4), allocate(1, 12, known_blocks=1)).results
    assert isinstance(first, AllocateResult)
    assert isinstance(second, AllocateResult)
    assert (len(first.block_table), first.first_block) == (1, 0)
    assert (len(second.block_table), second.first_block) == (2, 1)


def test_unknown_sequences_in_free_are_passed_over(world: World, caller: Caller) -> None:
    caller.step(free(7, 8, 8))
    caller.allocate(1, 8)
    caller.step(free(1, 1, 9))
    caller.step(free(1))
    assert world.free_frames()[0] == 8


def test_a_whole_turn_in_one_step(caller: Caller) -> None:
    """All kinds at once: the answer has a result for each."""
    caller.step(allocate(1, 8), allocate(2, 6))
    operations: list[Operation] = [
        swap_out(1, 8),
        activity(2, Activity.WAITING, 4),
        allocate(4, 4),
        fork(2, 3),
        commit(1, keys_of(text(1, 8))),
    ]
    assert len(caller.step(*operations).results) == len(operations)
