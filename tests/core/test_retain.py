"""What is retained is evicted last, for a time and within a tenant's budget."""

from kvstore.core.operations import EndSession
from kvstore.core.types import Tier
from tests.core.caller import Caller
from tests.core.chains import cached, fill, make_world, retain
from tests.core.forgetting import forget
from tests.core.ops import free
from tests.core.world import keys_of, text


def test_case_9_02_what_is_retained_is_evicted_last() -> None:
    """Between two turns of a chat others fill the pool many times over: it waits for its tool, and stays."""
    caller = Caller(make_world())
    caller.cache(text(1, 16), session="chat")
    assert retain(caller, session="chat") == 4
    fill(caller, 2, 20)
    assert cached(caller, 1) == 4
    # The others' cache works as ever: the last two are there.
    assert [cached(caller, number) for number in (19, 20, 21)] == [4, 4, 4]


def test_case_9_02_under_full_pressure_what_is_retained_goes_too() -> None:
    """Never a hard pin: who runs gets the frames, least priority first."""
    caller = Caller(make_world())
    caller.cache(text(1, 16))
    caller.cache(text(2, 16))
    assert retain(caller, text(1, 16), priority=2) == 4
    assert retain(caller, text(2, 16), priority=1) == 4
    caller.allocate(7, 16 * 3)
    assert (cached(caller, 1), cached(caller, 2)) == (4, 0)
    assert caller.allocate(8, 16).block_table
    assert cached(caller, 1) == 0


def test_case_9_02_a_hit_renews_it_and_without_one_it_ends_and_deletes_nothing() -> None:
    world = make_world()
    caller = Caller(world)
    for number in (1, 2):
        caller.cache(text(number, 16), number)
        assert retain(caller, text(number, 16), ttl=5.0) == 4
    for _ in range(8):
        world.tick(0.5)
        caller.keep_alive()
    caller.allocate(5, 17, keys_of(text(1, 16)))
    caller.step(free(5))
    for _ in range(6):
        world.tick(0.5)
        caller.keep_alive()
    # Text 2 has run out, and is cache still.
    assert (cached(caller, 1), cached(caller, 2)) == (4, 4)
    fill(caller, 10, 4)
    assert (cached(caller, 1), cached(caller, 2)) == (4, 0)


def test_case_9_02_a_tenants_budget_shortens_and_then_refuses() -> None:
    caller = Caller(make_world(retained=6))
    for number in (1, 2, 3):
        caller.cache(text(number, 16), number)
    assert retain(caller, text(1, 16)) == 4
    assert retain(caller, text(2, 16)) == 2
    assert retain(caller, text(3, 16)) == 0
    # What is retained already costs nothing more.
    assert retain(caller, text(1, 16)) == 4
    # Another tenant has a budget of its own.
    caller.cache(text(1, 12), 4, tenant="b")
    assert retain(caller, text(1, 12), tenant="b") == 3


def test_the_budget_has_room_again_when_what_was_retained_is_gone() -> None:
    world = make_world(retained=4)
    caller = Caller(world)
    caller.cache(text(1, 16), session="chat")
    caller.cache(text(2, 16), session="other")
    assert retain(caller, session="chat") == 4
    assert retain(caller, session="other") == 0
    forget(world, session="chat")
    assert retain(caller, session="other") == 4
    caller.step(EndSession(session="other"))
    caller.step()
    caller.cache(text(3, 16), 3)
    assert retain(caller, text(3, 16)) == 4


def test_where_there_is_no_budget_nothing_is_retained() -> None:
    caller = Caller(make_world(retained=0))
    caller.cache(text(1, 16))
    assert retain(caller, text(1, 16)) == 0


def test_what_is_retained_while_it_runs_is_kept_when_it_has_ended() -> None:
    caller = Caller(make_world())
    caller.begin(1, text(1, 16))
    caller.step()
    assert retain(caller, text(1, 16)) == 4
    caller.step(free(1))
    fill(caller, 2, 8)
    assert cached(caller, 1) == 4


def test_it_holds_in_the_tiers_below_too() -> None:
    world = make_world(gpu_frames=8, cpu_frames=16, disk_frames=16)
    caller = Caller(world)
    caller.cache(text(1, 16), session="chat")
    world.drain()
    assert retain(caller, session="chat") == 4
    for number in range(2, 12):
        caller.cache(text(number, 16), number, session=f"chat {number}")
        world.drain()
    assert cached(caller, 1) == 4
    best = caller.lookup(keys_of(text(1, 16))).blocks_by_tier
    assert best[Tier.DISK] < 4


def test_a_prompt_that_two_retain_is_kept_for_the_one_that_asks_for_more() -> None:
    world = make_world()
    caller = Caller(world)
    one, two = (*text(1, 8), *text(11, 8)), (*text(1, 8), *text(12, 8))
    caller.cache(one, 1)
    caller.cache(two, 2)
    assert retain(caller, one, ttl=2.0, priority=1) == 4
    assert retain(caller, two, ttl=60.0, priority=0) == 4
    for _ in range(8):
        world.tick(0.5)
        caller.keep_alive()
    fill(caller, 20, 6)
    assert caller.lookup(keys_of(one)).blocks_cached == 2
    assert caller.lookup(keys_of(two)).blocks_cached == 4
