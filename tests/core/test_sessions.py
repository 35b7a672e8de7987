"""What is known of a chat session between its turns, and of the order in which blocks were used."""

import pytest

from kvstore.core.effects import BlocksUsed, SessionsForgotten, SessionsKept
from kvstore.core.events import BlocksFound
from kvstore.core.operations import EndSession
from kvstore.core.sessions import Session
from kvstore.core.types import BlockKey, NamespaceId, Retention, StoredSession, TenantId, domain_id
from tests.core.caller import Caller
from tests.core.ops import commit, free
from tests.core.world import World, keys_of, make_store, stored_keys, text

DOMAIN = domain_id(NamespaceId(1), TenantId(1))


def make_world(disk_frames: int = 32) -> World:
    return World(make_store(gpu_frames=16, cpu_frames=16, disk_frames=disk_frames))


def turn(caller: Caller, sequence: int, number: int, tokens: int, session: str = "chat") -> None:
    caller.begin(sequence, text(number, tokens), session=session)
    caller.step(free(sequence))


def found(world: World, session: str = "chat") -> Session | None:
    return world.store.sessions.find(DOMAIN, session)


def kept(world: World) -> list[StoredSession]:
    return [
        session
        for handled in world.log
        for note in getattr(getattr(handled, "effects", None), "notes", ())
        if isinstance(note, SessionsKept)
        for session in note.sessions
    ]


def test_a_turn_that_was_freed_is_the_sessions_chain() -> None:
    world = make_world()
    caller = Caller(world)
    turn(caller, 1, 1, 18)
    keys = keys_of(text(1, 18))
    assert len(keys) == 4
    assert found(world) == Session(0, keys)
    assert [(each.name, each.tenant, each.namespace, each.keys) for each in kept(world)] == [
        ("chat", 1, 1, keys)
    ]
    turn(caller, 2, 2, 9)
    assert found(world) == Session(0, keys_of(text(2, 9)))
    assert len(kept(world)) == 2


def test_nothing_is_known_of_it_before_the_fence_of_its_free_has_passed() -> None:
    world = make_world()
    caller = Caller(world)
    caller.begin(1, text(1, 8), session="chat")
    caller.step(free(1), completed=1)
    assert found(world) is None
    caller.step(completed=2)
    assert found(world) == Session(0, keys_of(text(1, 8)))


@pytest.mark.parametrize("retention", [Retention.CACHE, Retention.DISCARD])
def test_a_turn_that_is_not_to_be_kept_leaves_the_session_as_it_was(retention: Retention) -> None:
    world = make_world()
    caller = Caller(world)
    turn(caller, 1, 1, 8)
    caller.begin(2, text(2, 8), session="chat")
    caller.step(free(2, retention=retention))
    assert found(world) == Session(0, keys_of(text(1, 8)))


def test_a_session_that_ends_is_forgotten_on_disk_too() -> None:
    world = make_world()
    caller = Caller(world)
    turn(caller, 1, 1, 8)
    caller.step(EndSession(session="chat"))
    assert found(world) is None
    (note,) = caller.effects.notes
    assert isinstance(note, SessionsForgotten)
    assert [(each.namespace, each.tenant, each.name) for each in note.sessions] == [(1, 1, "chat")]
    caller.step(EndSession(session="chat"))
    assert caller.effects.notes == ()


def test_the_turn_of_an_engine_that_dies_stays() -> None:
    """Freed, or in the middle of it: what is committed can be gone on from."""
    world = make_world()
    caller = Caller(world)
    caller.begin(1, text(1, 8), session="freed")
    caller.step(free(1), completed=2)
    caller.begin(2, text(2, 8), session="running")
    caller.step(completed=caller.step_number)
    caller.close_tethers()
    assert found(world, "freed") == Session(0, keys_of(text(1, 8)))
    assert found(world, "running") == Session(0, keys_of(text(2, 8)))


def test_a_session_outlives_the_service() -> None:
    world = make_world()
    caller = Caller(world)
    turn(caller, 1, 1, 16)
    turn(caller, 2, 2, 16, session="other")
    world.drain()
    world.restart(make_store(gpu_frames=16, cpu_frames=16, disk_frames=32))
    assert found(world) == Session(0, keys_of(text(1, 16)))
    assert list(world.store.sessions.names()) == [(DOMAIN, "chat"), (DOMAIN, "other")]
    # That it is the session's own is known again as well: its end takes it out of every tier.
    caller = Caller(world, 2)
    caller.step(EndSession(session="chat"))
    assert caller.lookup(keys_of(text(1, 16))).blocks_cached == 0
    assert caller.lookup(keys_of(text(2, 16))).blocks_cached == 4


def test_what_two_sessions_share_is_neithers_own_after_a_restart() -> None:
    world = make_world()
    caller = Caller(world)
    prompt = text(1, 8)
    for number, name in ((1, "one"), (2, "two")):
        tokens = (*prompt, *text(10 + number, 8))
        caller.begin(number, tokens, session=name)
        caller.step(free(number))
    world.drain()
    world.restart(make_store(gpu_frames=16, cpu_frames=16, disk_frames=32))
    caller = Caller(world, 2)
    caller.step(EndSession(session="one"))
    assert caller.lookup(keys_of((*prompt, *text(11, 8)))).blocks_cached == 2
    assert caller.lookup(keys_of((*prompt, *text(12, 8)))).blocks_cached == 4


@pytest.mark.parametrize("retention", [Retention.CACHE, Retention.DISCARD])
def test_a_turn_is_kept_also_where_another_has_published_its_blocks_first(retention: Retention) -> None:
    """Two compute the same prompt at once, as chats with one system prompt do: what is kept of the second is
    the first one's blocks, which nobody else wants on disk, and its own behind them."""
    world = make_world()
    caller, tokens = Caller(world), text(1, 16)
    keys = keys_of(tokens)
    for sequence, session in ((1, ""), (2, "chat")):
        caller.allocate(sequence, 16, session=session)
        caller.write(caller.table(sequence), tokens)
    caller.step(commit(1, keys[:3]), commit(2, keys))
    caller.step(free(1, retention=retention), free(2))
    caller.step()
    for _ in range(3):
        world.drain()
        world.tick(1.1)
    world.restart(make_store(gpu_frames=16, cpu_frames=16, disk_frames=32))
    assert Caller(world, 2).lookup(keys).blocks_cached == 4


def test_what_another_session_ends_with_is_not_ones_own_after_a_restart() -> None:
    """Nothing of the other's hangs on it: that it names it is all there is."""
    world = make_world()
    caller = Caller(world)
    turn(caller, 1, 1, 16, session="one")
    caller.allocate(2, 9, keys_of(text(1, 8)), session="two")
    caller.step(free(2))
    caller.step()
    world.drain()
    world.restart(make_store(gpu_frames=16, cpu_frames=16, disk_frames=32))
    caller = Caller(world, 2)
    caller.step(EndSession(session="one"))
    assert caller.lookup(keys_of(text(1, 16))).blocks_cached == 2


def stored(name: str, *keys: BlockKey, tenant: int = 1) -> StoredSession:
    return StoredSession(
        namespace=NamespaceId(1), tenant=TenantId(tenant), name=name, turn=3, keys=tuple(keys)
    )


def test_of_a_session_found_on_disk_the_blocks_that_are_there_count() -> None:
    world = make_world()
    one, two = stored_keys(text(1, 16)), keys_of(text(2, 8))
    sessions = (
        stored("shorter", *keys_of(text(1, 24))),
        stored("gone", *two),
        stored("of another tenant", *keys_of(text(1, 16)), tenant=2),
    )
    effects = world.handle(BlocksFound(time=world.time, blocks=tuple(one), sessions=sessions))
    assert found(world, "shorter") == Session(3, keys_of(text(1, 16)))
    assert list(world.store.sessions.names()) == [(DOMAIN, "shorter")]
    (note,) = effects.notes
    assert isinstance(note, SessionsForgotten)
    assert [(each.tenant, each.name) for each in note.sessions] == [(1, "gone"), (2, "of another tenant")]


def test_sessions_are_bounded_and_the_least_recent_go() -> None:
    store = make_store(gpu_frames=4, cpu_frames=4, disk_frames=2)
    world = World(store)
    caller = Caller(world)
    assert store.config.session_keys_max == 20
    for number in range(1, 8):
        turn(caller, number, number, 16, session=f"chat {number % 6}")
        world.drain()
    assert [name for _, name in store.sessions.names()] == [f"chat {n % 6}" for n in (3, 4, 5, 6, 7)]
    assert store.sessions.key_count == 20
    # What the disk was told in all comes to the same.
    assert [each.name for each in world.shadow.disk.sessions()] == [
        name for _, name in store.sessions.names()
    ]


def test_without_a_disk_sessions_are_known_and_nobody_is_told() -> None:
    world = make_world(disk_frames=0)
    caller = Caller(world)
    turn(caller, 1, 1, 8)
    assert found(world) == Session(0, keys_of(text(1, 8)))
    assert caller.effects.notes == ()


# ------------------------------------------------------------------------------ order of use


def used(world: World, seconds: float = 3.0) -> list[BlockKey]:
    keys: list[BlockKey] = []
    for _ in range(int(seconds * 10)):
        for note in world.tick().notes:
            if isinstance(note, BlocksUsed):
                keys += [key.key for key in note.keys]
    return keys


def on_disk(world: World) -> Caller:
    """Texts 1, 2 and 3, written in this order."""
    caller = Caller(world)
    for number in (1, 2, 3):
        turn(caller, number, number, 16, session=f"chat {number}")
        world.drain()
    return caller


def test_what_was_used_is_told_in_the_order_of_use() -> None:
    world = make_world()
    caller = on_disk(world)
    used(world)
    for sequence, number in ((11, 2), (12, 1)):
        caller.allocate(sequence, 17, keys_of(text(number, 16)))
        world.drain()
        caller.step(free(sequence))
    assert used(world) == [*keys_of(text(2, 16))[::-1], *keys_of(text(1, 16))[::-1]]
    assert used(world) == []


def test_after_a_restart_the_order_of_use_is_that_of_before() -> None:
    """And not the order of writing: text 1 was written first, and used last."""
    world = make_world()
    caller = on_disk(world)
    caller.allocate(11, 17, keys_of(text(1, 16)))
    world.drain()
    caller.step(free(11))
    used(world)
    world.restart(make_store(gpu_frames=16, cpu_frames=16, disk_frames=8))
    caller = Caller(world, 2)
    left = [caller.lookup(keys_of(text(number, 16))).blocks_cached for number in (1, 2, 3)]
    assert left == [4, 0, 4]


def test_a_batch_is_bounded_and_the_rest_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvstore.core.recency.TOLD_MAX", 3)
    monkeypatch.setattr("kvstore.core.recency.ROUND_MAX", 5)
    world = make_world()
    caller = on_disk(world)
    told = [len(note.keys) for _ in range(100) for note in world.tick().notes if isinstance(note, BlocksUsed)]
    assert max(told) == 3
    assert sum(told) == 12
    caller.allocate(11, 17, keys_of(text(2, 16)))
    world.drain()
    caller.step(free(11))
    assert used(world, 10.0) == [*keys_of(text(2, 16))[::-1]]


def test_what_has_left_the_disk_meanwhile_is_not_told() -> None:
    world = make_world()
    caller = on_disk(world)
    caller.step(EndSession(session="chat 2"))
    told = used(world)
    assert set(told) == {*keys_of(text(1, 16)), *keys_of(text(3, 16))}


def test_stored_keys_told_as_used_are_those_that_were_written() -> None:
    world = make_world()
    on_disk(world)
    notes = [note for _ in range(30) for note in world.tick().notes if isinstance(note, BlocksUsed)]
    names = {(key.namespace, key.tenant, key.key) for note in notes for key in note.keys}
    assert names == set(world.shadow.disk)
