"""What a step costs in calls of numpy: the same for 16 sequences as for 256."""

import sys
from collections.abc import Callable
from types import FrameType

import pytest

from kvstore.core.calls import Step
from kvstore.core.operations import AllocateResult, Operation
from kvstore.core.types import StepNumber
from tests.core.caller import Caller
from tests.core.ops import allocate, commit, free
from tests.core.world import World, keys_of, make_store, text

FEW, MANY = 16, 256


def count_numpy_calls(call: Callable[[], object]) -> int:
    """Calls into numpy's C code, and of its Python wrappers, that the store itself makes."""
    calls = 0

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        if event == "c_call":
            owner = getattr(argument, "__self__", None)
            module = getattr(argument, "__module__", None) or type(owner).__module__
            calls += module.split(".")[0] == "numpy"
        elif event == "call":
            calls += frame.f_globals.get("__name__", "").split(".")[0] == "numpy"

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return calls


def crowd(count: int) -> Caller:
    caller = Caller(World(make_store(gpu_frames=8 * MANY)))
    caller.step(*(allocate(i, 8) for i in range(1, count + 1)))
    return caller


def cost_of(caller: Caller, *operations: Operation) -> int:
    """Of the store alone: no invariants are checked on the way."""
    caller.step_number += 1
    event = Step(
        time=caller.world.time,
        engine=caller.id,
        step=StepNumber(caller.step_number),
        completed_step=StepNumber(caller.step_number - 1),
        operations=operations,
    )
    return count_numpy_calls(lambda: caller.world.store.handle(event))


def growing(count: int) -> list[Operation]:
    """Each needs a new block."""
    return [allocate(i, 9, known_blocks=2) for i in range(1, count + 1)]


def staying(count: int) -> list[Operation]:
    return [allocate(i, 8, known_blocks=2) for i in range(1, count + 1)]


def beginning(count: int) -> list[Operation]:
    return [allocate(1000 + i, 8) for i in range(count)]


def beginning_with_hits(count: int) -> list[Operation]:
    return [allocate(1000 + i, 9, keys_of(text(7, 8))) for i in range(count)]


def committing(count: int) -> list[Operation]:
    return [commit(i, keys_of(text(i, 8))) for i in range(1, count + 1)]


def freeing(count: int) -> list[Operation]:
    return [free(*range(1, count + 1))]


def freeing_one_by_one(count: int) -> list[Operation]:
    return [free(i) for i in range(1, count + 1)]


@pytest.mark.parametrize(
    "operations",
    [
        growing,
        staying,
        beginning,
        committing,
        freeing,
        freeing_one_by_one,
    ],
    ids=lambda operations: operations.__name__,
)
def test_the_number_of_numpy_calls_does_not_grow_with_the_sequences(
    operations: Callable[[int], list[Operation]],
) -> None:
    costs = []
    for count in (FEW, MANY):
        caller = crowd(count)
        caller.cache(text(7, 8))
        caller.world.tick(0.01)
        costs.append(cost_of(caller, *operations(count)))
    few, many = costs
    assert few > 0
    assert many <= few + 2, costs


def test_a_cached_prefix_costs_a_few_calls_for_its_chain() -> None:
    """Each is looked at for itself: that every block hangs on the one before it."""
    costs = []
    for count in (FEW, MANY):
        caller = crowd(count)
        caller.cache(text(7, 8))
        costs.append(cost_of(caller, *beginning_with_hits(count)))
    few, many = costs
    assert (many - few) / (MANY - FEW) <= 4


def test_the_counter_counts() -> None:
    import numpy as np

    table = np.zeros(3)
    assert count_numpy_calls(lambda: (np.unique(table), table.tolist())) >= 2
    assert count_numpy_calls(lambda: [1].append(1)) == 0


def test_an_answer_holds_only_what_the_engine_does_not_know_of_a_table() -> None:
    caller = crowd(FEW)
    for result in caller.step(*growing(FEW)).results:
        assert isinstance(result, AllocateResult)
        assert (len(result.block_table), result.first_block) == (1, 2)
    for result in caller.step(*(allocate(i, 9, known_blocks=3) for i in range(1, FEW + 1))).results:
        assert isinstance(result, AllocateResult)
        assert (result.block_table, result.first_block) == ((), 3)


def test_a_table_that_did_not_change_is_not_copied() -> None:
    caller = crowd(FEW)
    before = [caller.sequence(i).rows for i in range(1, FEW + 1)]
    caller.step(*staying(FEW))
    assert all(caller.sequence(i).rows is rows for i, rows in enumerate(before, 1))
    caller.step(*growing(FEW))
    assert all(caller.sequence(i).rows is rows for i, rows in enumerate(before, 1)), "grown in place"


def test_case_6_21_who_names_no_keys_pays_for_no_index() -> None:
    """The same calls with nothing to be found as with a pool full of it."""
    costs = []
    for cached in (0, 8):
        caller = crowd(FEW)
        for number in range(cached):
            caller.cache(text(100 + number, 8))
        caller.world.tick(0.01)
        operations = [allocate(FEW + 1 + n, 5) for n in range(FEW)]
        costs.append(cost_of(caller, *operations))
        caller.step()
        costs.append(cost_of(caller, free(*range(FEW + 1, 2 * FEW + 1))))
    assert costs[:2] == costs[2:]
