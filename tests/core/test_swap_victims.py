"""Whom the store swaps by itself: who rests, by priority and by how long; never who runs."""

from kvstore.core.types import Activity, Tier
from tests.core.ops import activity, free
from tests.core.swapped import OUT, RESIDENT, SWAPPED, caller_of, written
from tests.core.world import keys_of, text


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
