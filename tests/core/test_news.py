"""What an engine is told: once for good by a step, again and again by KeepAlive until it has seen it."""

import pytest

from kvstore.core.notices import PressureChanged
from kvstore.core.types import Activity, Outcome, Pressure, SequenceState, Tier
from tests.core.caller import Caller, moves
from tests.core.ops import activity, allocate, free, swap_in, swap_out
from tests.core.world import World, keys_of, make_store, text


@pytest.fixture
def caller() -> Caller:
    return Caller(World(make_store(gpu_frames=8, cpu_frames=8)))


def swapped(caller: Caller, sequence: int = 1) -> None:
    caller.allocate(sequence, 10)
    caller.write(caller.table(sequence), text(sequence, 10))
    caller.swap_out(sequence, 10)
    caller.world.drain()


def test_the_end_of_a_swap_wakes_its_engine(caller: Caller) -> None:
    other = Caller(caller.world, 2)
    caller.allocate(1, 10)
    caller.swap_out(1, 10)
    assert caller.world.end(caller.world.under_way[0]).wake == (caller.id,)
    assert other.id not in caller.effects.wake


def test_a_step_tells_once_and_for_good(caller: Caller) -> None:
    swapped(caller)
    assert [move.state for move in moves(caller.step().notices)] == [SequenceState.SWAPPED]
    assert not caller.step().notices
    assert not caller.keep_alive().notices


def test_keep_alive_tells_until_it_was_seen_and_a_step_tells_it_again(caller: Caller) -> None:
    swapped(caller)
    first = caller.keep_alive()
    again = caller.keep_alive()
    assert first.notices == again.notices != ()
    assert moves(caller.step().notices) == moves(first.notices)


def test_what_was_seen_is_forgotten(caller: Caller) -> None:
    swapped(caller)
    first = caller.keep_alive()
    assert first.notices
    assert not caller.keep_alive(seen=first.revision).notices
    assert not caller.step().notices


def test_what_came_after_the_seen_revision_is_told(caller: Caller) -> None:
    swapped(caller, 1)
    seen = caller.keep_alive().revision
    swapped(caller, 2)
    (move,) = moves(caller.keep_alive(seen=seen).notices)
    assert move.sequence == 2
    assert move.revision > seen


def test_one_sequence_is_told_once_however_often_it_moved(caller: Caller) -> None:
    """As things are now: what lies between is of no use to anybody."""
    other = Caller(caller.world, 2)
    caller.allocate(1, 24)
    caller.rest(1, 24)
    other.allocate(1, 24)
    assert caller.state(1) is SequenceState.SWAPPING_OUT
    caller.world.drain()
    (move,) = moves(caller.keep_alive().notices)
    assert (move.sequence, move.state, move.block_table) == (1, SequenceState.SWAPPED, ())


def test_news_stand_in_the_order_of_their_revisions(caller: Caller) -> None:
    for sequence in (1, 2):
        caller.allocate(sequence, 10)
    caller.step(swap_out(2, 10))
    caller.world.drain()
    caller.step(swap_out(1, 10), swap_in(2))
    caller.world.drain()
    answer = caller.step()
    revisions = [notice.revision for notice in answer.notices]
    assert revisions == sorted(revisions)
    assert answer.revision >= max(revisions)


def test_without_events_the_revision_proves_that_none_was_missed(caller: Caller) -> None:
    swapped(caller)
    told = caller.step()
    assert caller.keep_alive().revision == told.revision


def test_the_results_come_first_and_the_events_say_how_things_are_after_the_step(caller: Caller) -> None:
    """The store moves a waiting sequence to make room in the very step that let it rest."""
    caller.allocate(1, 24)
    answer = caller.step(activity(1, Activity.WAITING, 24), allocate(2, 24))
    assert answer.results[0].state is SequenceState.RESIDENT  # type: ignore[union-attr]
    assert answer.results[1].outcome is Outcome.LATER  # type: ignore[union-attr]
    (move,) = moves(answer.notices)
    assert (move.sequence, move.state) == (1, SequenceState.SWAPPING_OUT)


def test_of_a_sequence_that_is_freed_nothing_is_told(caller: Caller) -> None:
    swapped(caller)
    assert not caller.step(free(1)).notices
    assert not caller.keep_alive().notices


def test_an_old_count_of_filled_tokens_is_cut_to_what_did_come(caller: Caller) -> None:
    """The engine parks a sequence in the step before it could know that its load had failed."""
    tokens = text(1, 16)
    caller.cache(tokens)
    caller.world.drain()
    caller.allocate(9, 32)
    caller.step(free(9))
    caller.allocate(1, 17, keys_of(tokens))
    caller.world.end(caller.world.under_way[0], failed=[1])
    caller.step(activity(1, Activity.WAITING, 16))
    assert caller.sequence(1).filled_tokens == 4
    caller.step(activity(1, Activity.WAITING, 16))
    assert caller.sequence(1).filled_tokens == 16, "it knows now, and has computed the rest"


def test_pressure_is_told_to_all_engines_when_it_changes(caller: Caller) -> None:
    other = Caller(caller.world, 2)
    caller.allocate(1, 32)
    caller.world.tick(0.2)
    notices = other.keep_alive().notices
    (notice,) = [each for each in notices if isinstance(each, PressureChanged)]
    assert (notice.tier, notice.pressure) == (Tier.GPU, Pressure.HIGH)
    caller.step(free(1))
    caller.step()
    assert caller.world.tick(0.2).wake == (caller.id, other.id)
    (notice,) = [each for each in other.step().notices if isinstance(each, PressureChanged)]
    assert notice.pressure is Pressure.LOW


def test_pressure_changes_its_mind_only_between_the_watermarks() -> None:
    caller = Caller(World(make_store(gpu_frames=20)))
    seen = []
    for frames in (16, 17, 18, 17, 16, 15, 16):
        caller.step(allocate(1, frames * 4))
        if frames < len(caller.table(1)):
            caller.step(free(1))
            caller.step()
            caller.allocate(frames + 100, frames * 4)
            caller.world.tick(0.2)
            seen.append(caller.world.store.usage().tiers[Tier.GPU].pressure)
            caller.step(free(frames + 100))
            caller.step()
            break
        caller.world.tick(0.2)
        seen.append(caller.world.store.usage().tiers[Tier.GPU].pressure)
    assert seen == [Pressure.LOW, Pressure.LOW, Pressure.HIGH, Pressure.HIGH]
