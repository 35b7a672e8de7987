"""Forget in lots: what the ticks finish, crashes and failing disks in the middle, how many at a time."""

import pytest

from kvstore.core.calls import ForgetOn
from kvstore.core.errors import CheckFailed, TooManyForgets
from kvstore.core.types import ForgetId
from tests.core.caller import Caller
from tests.core.forgetting import cached, forget, go_on, make_world, restart, turn
from tests.core.ops import free
from tests.core.world import text


def test_work_goes_on_in_lots_and_the_ticks_finish_it() -> None:
    world = make_world(lot=3)
    caller = Caller(world)
    turn(caller, 1, text(1, 32))
    world.drain()
    before = world.events
    answer = forget(world, session="chat")
    assert (answer.blocks_forgotten, answer.lots_left) == (3, True)
    # Nothing of it can be found, though most is still there.
    assert cached(caller, text(1, 32)) == 0
    assert go_on(world, answer).blocks_forgotten == 6
    assert world.tick().deletes
    assert world.events > before
    world.drain()
    assert go_on(world, answer).done
    assert len(world.shadow.disk) == 0


def test_a_crash_in_the_middle_leaves_a_valid_store_and_a_repeat_finishes() -> None:
    world = make_world(lot=3)
    caller = Caller(world)
    turn(caller, 1, text(1, 32))
    world.drain()
    forget(world, session="chat")
    assert len(world.shadow.disk) == 5
    caller = restart(world)
    # Tails went first: what is left is a chain.
    assert cached(caller, text(1, 32)) == 5
    answer = forget(world, session="chat")
    assert answer.blocks_forgotten == 5
    world.drain()
    assert len(world.shadow.disk) == 0
    assert go_on(world, answer).done
    assert cached(restart(world, 10), text(1, 32)) == 0


def test_the_same_asked_again_takes_in_what_has_come_since() -> None:
    world = make_world(lot=2)
    caller = Caller(world)
    turn(caller, 1, text(1, 16))
    first = forget(world, session="chat")
    turn(caller, 2, text(2, 16))
    assert cached(caller, text(2, 16)) == 4
    again = forget(world, session="chat")
    assert again.forget == first.forget
    assert cached(caller, text(2, 16)) == 0
    for _ in range(4):
        again = go_on(world, again)
    assert (again.blocks_forgotten, again.lots_left) == (8, False)
    world.drain()
    assert go_on(world, again).done


def test_a_disk_that_can_not_delete_is_asked_again_later() -> None:
    world = make_world()
    turn(Caller(world), 1, text(1, 8))
    world.drain()
    answer = forget(world, session="chat")
    world.end_sync(failed=True)
    assert not go_on(world, answer).done
    assert world.syncs == []
    world.tick(1.1)
    assert len(world.syncs) == 1
    world.end_sync()
    assert go_on(world, answer).done


def test_an_answer_of_the_disk_to_an_older_question_does_not_count() -> None:
    world = make_world()
    caller = Caller(world)
    turn(caller, 1, text(1, 8))
    world.drain()
    answer = forget(world, session="chat")
    turn(caller, 2, text(2, 8))
    assert forget(world, session="chat").forget == answer.forget
    old, *_ = world.syncs
    world.end_sync(old)
    assert not go_on(world, answer).done
    world.drain()
    assert go_on(world, answer).done


def test_few_are_under_way_at_a_time() -> None:
    world = make_world()
    caller = Caller(world)
    for number in range(17):
        turn(caller, number + 1, text(number + 1, 4), session=f"chat {number}")
        world.drain()
    for number in range(16):
        forget(world, session=f"chat {number}")
    with pytest.raises(TooManyForgets):
        forget(world, session="chat 16")
    world.end_sync()
    forget(world, session="chat 16")


def test_rows_that_mean_other_blocks_by_now_are_left_alone() -> None:
    """A lot may be taken long after the call: what was evicted meanwhile has given its row to others."""
    world = make_world(lot=1, disk_frames=0, cpu_frames=0, gpu_frames=8)
    caller = Caller(world)
    caller.cache(text(1, 32), session="chat")
    answer = forget(world, session="chat")
    caller.begin(5, text(5, 32))
    caller.step(free(5))
    caller.step()
    for _ in range(8):
        answer = go_on(world, answer)
    assert answer.done
    assert cached(caller, text(5, 32)) == 8


def test_a_forget_that_nobody_has_begun_is_a_bug() -> None:
    world = make_world()
    with pytest.raises(CheckFailed):
        world.handle(ForgetOn(time=world.time, forget=ForgetId(1)))
