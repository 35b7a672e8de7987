"""Before a restart: nothing new is begun, what runs goes on, and what can be found goes to disk."""

import pytest

from kvstore.core import draining
from kvstore.core.answers import DrainAnswer, SequenceAnswer
from kvstore.core.calls import Drain, GetSequence
from kvstore.core.errors import Draining, SequenceUnknown
from kvstore.core.types import Activity, Outcome, Retention, SequenceId, SequenceState, Tier
from tests.core.caller import Caller
from tests.core.ops import allocate, commit, end_session, fork, free, swap_in, swap_out
from tests.core.world import World, keys_of, make_store, text

TOKENS = text(1, 16)


def caller_of(**sizes: int) -> Caller:
    return Caller(World(make_store(**({"gpu_frames": 16, "cpu_frames": 16, "disk_frames": 32} | sizes))))


def drain(world: World, *, on: bool = True) -> DrainAnswer:
    answer = world.handle(Drain(time=world.time, on=on)).answer
    assert isinstance(answer, DrainAnswer)
    return answer


def drained(world: World) -> DrainAnswer:
    """Asked again until nothing is on its way."""
    answer = drain(world)
    while answer.blocks_moving:
        world.drain()
        answer = drain(world)
    return answer


def on_disk(caller: Caller, tokens: tuple[int, ...]) -> int:
    """Leading blocks of a text that have a copy there."""
    known = {stored.key for stored in caller.world.shadow.disk.find()}
    keys = keys_of(tokens)
    return next((place for place, key in enumerate(keys) if key not in known), len(keys))


# ---------------------------------------------------------------------------- refusals


def test_nobody_new_attaches_and_a_retry_is_answered() -> None:
    caller = caller_of()
    drain(caller.world)
    with pytest.raises(Draining, match="no new engines"):
        Caller(caller.world, 2)
    caller.world.handle(caller.attach_event())


def test_a_new_sequence_waits_and_nothing_is_short_so_nobody_is_preempted_for_it() -> None:
    caller = caller_of()
    caller.allocate(1, 40)
    caller.rest(1, 40)
    drain(caller.world)
    result = caller.allocate(2, 60, keys_of(TOKENS))
    assert (result.outcome, result.state, result.frames_short) == (
        Outcome.LATER,
        SequenceState.DROPPED,
        0,
    )
    assert caller.state(1) is SequenceState.RESIDENT


def test_when_the_drain_is_cancelled_what_waited_is_served_with_its_keys() -> None:
    caller = caller_of()
    caller.cache(TOKENS)
    drain(caller.world)
    assert caller.allocate(2, 17, keys_of(TOKENS)).outcome is Outcome.LATER
    drain(caller.world, on=False)
    result = caller.allocate(2, 17)
    assert (result.outcome, result.cached_tokens) == (Outcome.OK, 16)
    Caller(caller.world, 2)


def test_what_runs_goes_on() -> None:
    """It grows, forks, is swapped and comes back, and comes back after a drop too."""
    caller = caller_of()
    caller.begin(1, TOKENS)
    caller.allocate(3, 8)
    drain(caller.world)
    assert caller.allocate(1, 20).outcome is Outcome.OK
    caller.step(fork(1, 2))
    assert caller.allocate(2, 21).outcome is Outcome.OK
    caller.swap_out(1, 20)
    caller.world.drain()
    assert caller.one(type(caller.swap_in(1)), swap_in(1)).outcome is Outcome.OK
    caller.swap_out(3, 8)
    caller.world.drain()
    assert caller.state(3) in (SequenceState.SWAPPED, SequenceState.DROPPED)
    caller.step(free(1, 2))
    caller.step()
    assert caller.swap_in(3).outcome is Outcome.OK


def test_a_sequence_that_was_dropped_after_it_ran_is_no_new_one() -> None:
    caller = caller_of(cpu_frames=0, disk_frames=0)
    caller.begin(1, TOKENS)
    caller.swap_out(1, 16)
    assert caller.state(1) is SequenceState.DROPPED
    drain(caller.world)
    assert caller.allocate(1, 16).outcome is Outcome.OK


# --------------------------------------------------------------------------- what is kept


def test_all_that_can_be_found_goes_to_disk_also_what_is_only_cached_or_still_used() -> None:
    caller = caller_of()
    caller.cache(text(1, 16), 1)
    caller.cache(text(2, 8), 2, session="s")
    caller.begin(3, text(3, 12))
    caller.step()
    answer = drain(caller.world)
    assert (answer.blocks_left, answer.blocks_moving) == (9, 9)
    answer = drained(caller.world)
    assert (answer.blocks_left, answer.blocks_stored) == (0, 9)
    assert [on_disk(caller, text(number, 16)) for number in (1, 2, 3)] == [4, 2, 3]


def test_asked_again_it_takes_what_was_committed_since() -> None:
    caller = caller_of()
    caller.allocate(1, 16)
    caller.write(caller.table(1), TOKENS)
    assert drained(caller.world).blocks_left == 0
    caller.step(commit(1, keys_of(TOKENS)))
    answer = drain(caller.world)
    assert (answer.blocks_left, answer.blocks_moving) == (4, 4)
    assert drain(caller.world) == answer, "on their way already: asked for once"
    assert drained(caller.world) == DrainAnswer(blocks_left=0, blocks_moving=0, blocks_stored=4)


def test_it_asks_for_so_much_at_a_time_and_comes_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "ASKED_MAX", 3)
    caller = caller_of()
    caller.cache(text(1, 16), 1)
    caller.world.drain()
    caller.begin(2, text(2, 16), session="s")
    caller.step()
    assert drain(caller.world) == DrainAnswer(blocks_left=8, blocks_moving=3, blocks_stored=0)
    assert drained(caller.world).blocks_left == 0
    assert (on_disk(caller, text(1, 16)), on_disk(caller, text(2, 16))) == (4, 4)


def test_more_than_the_disk_holds_is_not_written_in_turns() -> None:
    """Sessions that push one another out: each block goes there once at the most, and what is there stays."""
    caller = caller_of(gpu_frames=40, cpu_frames=40, disk_frames=8)
    for number in range(1, 6):
        caller.begin(number, text(number, 20), session=f"chat {number}")
    caller.step()
    answer, looks = drain(caller.world), 0
    while answer.blocks_moving:
        caller.world.drain()
        answer, looks = drain(caller.world), looks + 1
        assert looks < 20
    assert answer.blocks_stored == 8
    assert len(caller.world.shadow.disk.find()) == 8
    # The next drain begins anew.
    drain(caller.world, on=False)
    assert drain(caller.world).blocks_moving == 8


def test_without_a_disk_nothing_moves_and_it_says_what_would_be_lost() -> None:
    caller = caller_of(disk_frames=0)
    caller.cache(TOKENS)
    caller.world.drain()
    assert drain(caller.world) == DrainAnswer(blocks_left=4, blocks_moving=0, blocks_stored=0)
    assert not caller.world.under_way


def test_sessions_go_before_what_is_only_cached_which_pushes_nothing_out() -> None:
    world = World(make_store(gpu_frames=16, cpu_frames=16, disk_frames=6))
    world.find(text(9, 8))
    caller = Caller(world)
    caller.cache(text(1, 16), 1)
    caller.world.drain()
    caller.begin(2, text(2, 16), session="s")
    caller.step()
    answer = drained(caller.world)
    assert on_disk(caller, text(2, 16)) == 4
    assert on_disk(caller, text(9, 8)) == 2, "there was room for the session beside it"
    assert on_disk(caller, text(1, 16)) == 0
    assert answer.blocks_left == 4


def test_of_what_is_only_cached_heads_go_first_as_far_as_there_is_room() -> None:
    caller = caller_of(disk_frames=5)
    caller.cache(text(1, 16), 1)
    caller.cache(text(2, 16), 2)
    assert drained(caller.world).blocks_left == 3
    assert {on_disk(caller, text(1, 16)), on_disk(caller, text(2, 16))} == {2, 3}


def test_what_a_session_hangs_on_goes_with_it() -> None:
    """The head was published by a lone sequence, of which nothing else is to go: there is no room."""
    caller = caller_of(disk_frames=4)
    long = text(1, 16)
    caller.cache(text(1, 8), 1)
    caller.cache(text(5, 16), 5)
    caller.begin(2, long, session="s")
    caller.step()
    assert drained(caller.world).blocks_left == 4
    assert on_disk(caller, long) == 4


def test_what_is_unwanted_is_not_written() -> None:
    caller = caller_of()
    """The session is over, and its last turn runs still."""
    caller.begin(1, TOKENS, session="s")
    caller.step(end_session("s"))
    caller.step()
    assert drain(caller.world) == DrainAnswer(blocks_left=0, blocks_moving=0, blocks_stored=0)
    assert not caller.world.under_way


def test_writes_that_fail_are_asked_for_again_by_the_next() -> None:
    caller = caller_of()
    caller.cache(TOKENS, session="s")
    world = caller.world
    drain(world)
    while world.under_way:
        (moving,) = world.under_way
        world.end(moving, range(4) if moving.transfer.target is Tier.DISK else ())
    answer = drain(world)
    assert (answer.blocks_left, answer.blocks_moving, answer.blocks_stored) == (4, 4, 0)
    assert drained(world).blocks_left == 0


def test_it_makes_way_for_nobody_and_neither_does_the_next() -> None:
    """Somebody waits for GPU frames, so in the background nothing would be written for a second: for as long
    as a drain looks on. It is cancelled and asked for again, and no time passes."""
    caller = caller_of()
    caller.cache(TOKENS, session="s")
    caller.allocate(1, 48)
    assert caller.allocate(2, 40).outcome is Outcome.LATER
    world = caller.world
    world.drain()
    assert on_disk(caller, TOKENS) == 0
    for _ in range(2):
        drain(world)
        drain(world, on=False)
    drain(world)
    world.drain()
    assert on_disk(caller, TOKENS) == 4


def test_what_hangs_on_what_is_to_go_is_not_waited_for() -> None:
    """Two compute the same head at once; the one whose it is has discarded it, the other goes on."""
    caller = caller_of()
    tokens = text(1, 12)
    caller.step(allocate(1, 8), allocate(2, 12))
    caller.step(commit(1, keys_of(tokens)[:2]), commit(2, keys_of(tokens)))
    caller.step(free(1, retention=Retention.DISCARD))
    caller.step()
    answer = drain(caller.world)
    assert (answer.blocks_left, answer.blocks_moving) == (0, 0)


def test_what_a_swap_is_bringing_down_is_waited_for() -> None:
    caller = caller_of()
    caller.begin(1, TOKENS, session="s")
    caller.step(completed=caller.step_number)
    caller.step(swap_out(1, 16), completed=caller.step_number - 1)
    assert drain(caller.world).blocks_moving == 4
    caller.keep_alive()
    assert drained(caller.world).blocks_left == 0


# ------------------------------------------------------------------------- GetSequence


def stands(caller: Caller, sequence: int) -> tuple[SequenceState, int, int, int]:
    event = GetSequence(time=caller.world.time, engine=caller.id, sequence=SequenceId(sequence))
    answer = caller.world.handle(event).answer
    assert isinstance(answer, SequenceAnswer)
    return answer.state, answer.token_count, answer.valid_tokens, len(answer.block_table)


def test_how_a_sequence_stands() -> None:
    caller = caller_of()
    caller.begin(1, TOKENS, session="s")
    caller.allocate(1, 21)
    event = GetSequence(time=caller.world.time, engine=caller.id, sequence=SequenceId(1))
    answer = caller.world.handle(event).answer
    assert isinstance(answer, SequenceAnswer)
    assert (answer.session, answer.activity) == ("s", Activity.RUNNING)
    assert answer.block_table == caller.table(1)
    assert stands(caller, 1) == (SequenceState.RESIDENT, 21, 16, 6)
    caller.rest(1, 21)
    assert stands(caller, 1) == (SequenceState.RESIDENT, 21, 21, 6)
    caller.swap_out(1, 21)
    assert stands(caller, 1) == (SequenceState.SWAPPING_OUT, 21, 21, 0)
    caller.world.drain()
    assert stands(caller, 1) == (SequenceState.SWAPPED, 21, 21, 0)
    caller.swap_in(1)
    assert stands(caller, 1) == (SequenceState.SWAPPING_IN, 21, 21, 0)
    caller.world.drain()
    assert stands(caller, 1) == (SequenceState.RESIDENT, 21, 21, 6)
    with pytest.raises(SequenceUnknown):
        stands(caller, 2)


def test_to_ask_renews_the_lease_and_changes_nothing_else() -> None:
    caller = caller_of()
    caller.allocate(1, 8)
    world = caller.world
    for _ in range(30):
        world.tick(0.9)
        before = world.store.usage()
        stands(caller, 1)
        after = world.store.usage()
        assert (before.tiers, before.revision) == (after.tiers, after.revision)
        assert after.engines[0].lease_expire_time == world.time + 10.0
    assert stands(caller, 1)[0] is SequenceState.RESIDENT
