"""What was forgotten can't be found any more: in no tier, by nobody, before a restart or after it."""

from typing import Any

import pytest

from kvstore.core.errors import FieldInvalid, TenantRefused
from kvstore.core.types import NamespaceId, WriterId
from tests.core.caller import Caller
from tests.core.forgetting import cached, forget, go_on, make_world, restart, turn
from tests.core.ops import commit, free
from tests.core.world import keys_of, text


def test_a_session_is_forgotten_in_every_tier() -> None:
    world = make_world()
    caller = Caller(world)
    turn(caller, 1, text(1, 16))
    turn(caller, 2, text(2, 16), session="other")
    world.drain()
    answer = forget(world, session="chat")
    assert (answer.blocks_forgotten, answer.done, answer.lots_left) == (4, False, False)
    assert (cached(caller, text(1, 16)), cached(caller, text(2, 16))) == (0, 4)
    assert world.free_frames() == (12, 12, 28)
    assert len(world.shadow.disk) == 4
    # It is done when the disk has said so.
    world.end_sync()
    assert go_on(world, answer).done
    assert [name for _, name in world.store.sessions.names()] == ["other"]
    assert [session.name for session in world.shadow.disk.sessions()] == ["other"]
    caller = restart(world)
    assert (cached(caller, text(1, 16)), cached(caller, text(2, 16))) == (0, 4)


def test_a_sessions_earlier_turns_go_too_though_its_chain_has_left_them() -> None:
    """Also after a restart: the disk knows whose a block is."""
    world = make_world()
    turn(Caller(world), 1, text(1, 16))
    turn(caller := Caller(world, 2), 2, (*text(1, 8), *text(2, 8)))
    world.drain()
    caller = restart(world)
    assert (cached(caller, text(1, 16)), cached(caller, (*text(1, 8), *text(2, 8)))) == (4, 4)
    assert forget(world, session="chat").blocks_forgotten == 6
    assert (cached(caller, text(1, 16)), cached(caller, (*text(1, 8), *text(2, 8)))) == (0, 0)


def test_what_others_use_of_a_session_stays_unless_all_of_its_chain_is_meant() -> None:
    world = make_world()
    caller = Caller(world)
    prompt = text(1, 8)
    turn(caller, 1, (*prompt, *text(11, 8)), session="one")
    turn(caller, 2, (*prompt, *text(12, 8)), session="two")
    world.drain()
    assert forget(world, session="one").blocks_forgotten == 2
    assert cached(caller, (*prompt, *text(11, 8))) == 2
    assert cached(caller, (*prompt, *text(12, 8))) == 4
    world.drain()
    assert forget(world, session="two", whole_chain=True).blocks_forgotten == 4
    assert cached(caller, (*prompt, *text(12, 8))) == 0


def test_the_chain_of_a_turn_that_runs_counts_too() -> None:
    world = make_world()
    caller = Caller(world)
    turn(caller, 1, text(1, 8), session="one")
    world.drain()
    # Found, and nothing committed behind it.
    caller.allocate(2, 9, keys_of(text(1, 8)), session="two")
    assert forget(world, session="two").blocks_forgotten == 0
    world.drain()
    assert forget(world, session="two", whole_chain=True).blocks_forgotten == 2
    assert cached(caller, text(1, 8)) == 0


def test_what_hangs_on_a_sessions_block_keeps_it_though_nobody_has_used_it() -> None:
    """Two have computed the same prompt at the same time, and the other's answer hangs on it."""
    world = make_world()
    caller = Caller(world)
    prompt, other = text(1, 8), (*text(1, 8), *text(2, 8))
    one = caller.allocate(1, 8, keys_of(prompt)[:1], session="one")
    two = caller.allocate(2, 16, keys_of(other)[:1], session="two")
    caller.write(one.block_table, prompt)
    caller.write(two.block_table, other)
    caller.step(commit(1, keys_of(prompt)))
    caller.step(commit(2, keys_of(other)))
    caller.step(free(1, 2))
    assert forget(world, session="one").blocks_forgotten == 0
    assert cached(caller, other) == 4
    assert forget(world, session="one", whole_chain=True).blocks_forgotten == 4


def test_a_tenant_is_forgotten_and_others_are_not() -> None:
    world = make_world()
    one, two = Caller(world, 1), Caller(world, 2, namespace=2)
    for caller, tenant in ((one, "a"), (one, "b"), (two, "a"), (two, "b")):
        sequence = 1 + (tenant == "b")
        turn(caller, sequence, text(1, 8), tenant=tenant)
    world.drain()
    assert forget(world, tenant="a").blocks_forgotten == 4
    assert [cached(each, text(1, 8), tenant) for each in (one, two) for tenant in "ab"] == [0, 2, 0, 2]
    assert len(world.store.sessions) == 2


def test_a_namespace_is_forgotten_and_of_it_one_tenant() -> None:
    world = make_world()
    one, two = Caller(world, 1), Caller(world, 2, namespace=2)
    for caller, tenant in ((one, "a"), (one, "b"), (two, "a"), (two, "b")):
        turn(caller, 1 + (tenant == "b"), text(1, 8), tenant=tenant)
    assert forget(world, namespace=NamespaceId(2), tenant="b").blocks_forgotten == 2
    assert [cached(each, text(1, 8), tenant) for each in (one, two) for tenant in "ab"] == [2, 2, 2, 0]
    assert forget(world, namespace=NamespaceId(2)).blocks_forgotten == 2
    assert [cached(each, text(1, 8), tenant) for each in (one, two) for tenant in "ab"] == [2, 2, 0, 0]


def test_what_an_engine_wrote_is_forgotten_with_all_that_hangs_on_it() -> None:
    world = make_world()
    one, two = Caller(world, 1), Caller(world, 2)
    one.cache(text(1, 8))
    two.cache((*text(1, 8), *text(2, 8)))
    two.cache(text(3, 8))
    assert forget(world, writers=(WriterId(1),)).blocks_forgotten == 4
    assert cached(two, (*text(1, 8), *text(2, 8))) == 0
    assert cached(two, text(3, 8)) == 2


@pytest.mark.parametrize(
    ("what", "field", "error"),
    [
        ({}, "session", FieldInvalid),
        ({"session": "chat", "writers": (WriterId(1),)}, "session", FieldInvalid),
        ({"tenant": "nobody"}, "tenant", TenantRefused),
        ({"session": "chat", "tenant": "nobody"}, "tenant", TenantRefused),
    ],
)
def test_what_can_not_be_meant_is_refused(what: dict[str, Any], field: str, error: type[Exception]) -> None:
    world = make_world()
    turn(Caller(world), 1, text(1, 8))
    with pytest.raises(error) as refused:
        forget(world, **what)
    assert getattr(refused.value, "field", "") == field
    assert len(world.store.sessions) == 1


def test_what_nobody_has_is_forgotten_at_once() -> None:
    world = make_world(disk_frames=0)
    answer = forget(world, session="chat")
    assert (answer.blocks_forgotten, answer.done) == (0, True)
