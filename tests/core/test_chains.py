"""What a prompt or a session's chain can be asked for: to be kept longer, and to be brought up."""

from typing import Any

import pytest

from kvstore.core.answers import PrefetchAnswer, RetainAnswer
from kvstore.core.calls import Prefetch, Retain
from kvstore.core.errors import EngineExpired, FieldInvalid, TenantRefused
from kvstore.core.operations import EndSession
from kvstore.core.types import BlockKey, SequenceState, TenantId, Tier
from tests.core.caller import Caller, moves
from tests.core.forgetting import forget
from tests.core.ops import free
from tests.core.world import World, keys_of, make_store, text


def make_world(gpu_frames: int = 16, cpu_frames: int = 0, disk_frames: int = 0, retained: int = 8) -> World:
    return World(
        make_store(
            gpu_frames=gpu_frames,
            cpu_frames=cpu_frames,
            disk_frames=disk_frames,
            retained_blocks_max=retained,
        )
    )


def retain(caller: Caller, tokens: tuple[int, ...] = (), *, ttl: float = 60.0, **more: Any) -> int:
    world = caller.world
    event = Retain(time=world.time, engine=caller.id, block_keys=keys_of(tokens), ttl_seconds=ttl, **more)
    answer = world.handle(event).answer
    assert isinstance(answer, RetainAnswer)
    return answer.blocks_retained


def prefetch(caller: Caller, tokens: tuple[int, ...] = (), target: Tier = Tier.CPU, **more: Any) -> int:
    world = caller.world
    event = Prefetch(time=world.time, engine=caller.id, block_keys=keys_of(tokens), target=target, **more)
    answer = world.handle(event).answer
    assert isinstance(answer, PrefetchAnswer)
    return answer.blocks_started


def cached(caller: Caller, number: int, tenant: str = "") -> int:
    return caller.lookup(keys_of(text(number, 16)), tenant).blocks_cached


def fill(caller: Caller, first: int, count: int) -> None:
    """Other chats, of four blocks each."""
    for number in range(first, first + count):
        caller.cache(text(number, 16), number)


# ---------------------------------------------------------------------------------- Retain


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


# -------------------------------------------------------------------------------- Prefetch


def chat_on_disk(gpu_frames: int = 16, cpu_frames: int = 16) -> Caller:
    """After a restart: a session of four blocks, which lie on disk alone."""
    world = make_world(gpu_frames=gpu_frames, cpu_frames=cpu_frames, disk_frames=32)
    caller = Caller(world)
    caller.cache(text(1, 16), session="chat")
    world.drain()
    world.restart(make_store(gpu_frames=gpu_frames, cpu_frames=cpu_frames, disk_frames=32))
    return Caller(world, 2)


def tiers(caller: Caller) -> tuple[int, int, int]:
    return caller.lookup(keys_of(text(1, 16))).blocks_by_tier


@pytest.mark.parametrize(("target", "where"), [(Tier.CPU, (0, 4, 0)), (Tier.GPU, (4, 0, 0))])
@pytest.mark.parametrize("by_session", [True, False])
def test_a_chain_is_brought_up(target: Tier, where: tuple[int, int, int], by_session: bool) -> None:
    caller = chat_on_disk()
    named = {"session": "chat"} if by_session else {"tokens": text(1, 16)}
    assert prefetch(caller, target=target, **named) == 4
    assert tiers(caller) == (0, 0, 4)
    caller.world.drain()
    assert tiers(caller) == where
    # What is there is not brought again.
    assert prefetch(caller, target=target, session="chat") == 0
    assert not caller.world.under_way


@pytest.mark.parametrize("target", [Tier.CPU, Tier.GPU])
def test_who_asks_meanwhile_waits_for_the_same_transfer(target: Tier) -> None:
    caller = chat_on_disk()
    world = caller.world
    prefetch(caller, session="chat", target=target)
    (reading,) = world.under_way
    result = caller.allocate(1, 17, keys_of(text(1, 16)))
    assert (result.state, result.cached_tokens) == (SequenceState.SWAPPING_IN, 16)
    assert world.under_way == [reading]
    world.end(reading)
    (loading,) = world.under_way
    assert loading.transfer.target is Tier.GPU
    world.drain()
    (news,) = moves(caller.keep_alive().notices)
    assert (news.state, news.valid_tokens) == (SequenceState.RESIDENT, 16)
    caller.read(caller.table(1), text(1, 16))


def test_it_takes_no_frame_from_anybody() -> None:
    """The pool is full of what runs and of what is cached: the way to the GPU ends in the CPU tier."""
    caller = chat_on_disk(gpu_frames=8)
    caller.allocate(1, 16)
    caller.cache(text(2, 16), 2)
    assert prefetch(caller, session="chat", target=Tier.GPU) == 4
    caller.world.drain()
    assert caller.state(1) is SequenceState.RESIDENT
    assert cached(caller, 2) == 4
    assert tiers(caller) == (0, 4, 0)


def test_a_read_that_fails_is_a_miss_as_any_other() -> None:
    caller = chat_on_disk()
    prefetch(caller, session="chat")
    (reading,) = caller.world.under_way
    caller.world.end(reading, failed=[1])
    assert cached(caller, 1) == 1


def test_what_is_forgotten_on_its_way_up_never_arrives() -> None:
    caller = chat_on_disk()
    prefetch(caller, session="chat", target=Tier.GPU)
    forget(caller.world, session="chat")
    caller.world.drain()
    assert cached(caller, 1) == 0
    assert caller.world.free_frames() == (16, 16, 32)


# -------------------------------------------------------------------------------- of both


def test_nothing_is_found_across_tenants_and_namespaces() -> None:
    caller = chat_on_disk()
    other = Caller(caller.world, 3, namespace=2)
    for each, tenant in ((caller, "b"), (other, "a")):
        for named in ({"session": "chat"}, {"tokens": text(1, 16)}):
            assert prefetch(each, tenant=tenant, **named) == 0
            assert retain(each, tenant=tenant, **named) == 0
    assert not caller.world.under_way


BAD = BlockKey(b"short")


@pytest.mark.parametrize(
    ("what", "field", "error"),
    [
        ({}, "block_keys", FieldInvalid),
        ({"session": "chat", "block_keys": keys_of(text(1, 4))}, "session", FieldInvalid),
        ({"block_keys": (BAD,)}, "block_keys[0]", FieldInvalid),
        ({"session": "x" * 257}, "session", FieldInvalid),
        ({"session": "chat", "tenant": "nobody"}, "tenant", TenantRefused),
    ],
)
def test_what_can_not_be_meant_is_refused(what: dict[str, Any], field: str, error: type[Exception]) -> None:
    caller = Caller(make_world())
    for event in (
        Prefetch(time=caller.world.time, engine=caller.id, **what),
        Retain(time=caller.world.time, engine=caller.id, ttl_seconds=1.0, **what),
    ):
        with pytest.raises(error) as refused:
            caller.world.handle(event)
        assert getattr(refused.value, "field", "") == field


@pytest.mark.parametrize("ttl", [0.0, -1.0, 8 * 86_400.0, float("nan")])
def test_a_time_limit_has_bounds(ttl: float) -> None:
    with pytest.raises(FieldInvalid, match="ttl"):
        retain(Caller(make_world()), text(1, 4), ttl=ttl)


def test_nothing_is_brought_up_to_disk() -> None:
    with pytest.raises(FieldInvalid, match="target"):
        prefetch(Caller(make_world()), text(1, 4), target=Tier.DISK)


def test_an_engine_that_is_gone_can_ask_for_nothing() -> None:
    caller = Caller(make_world())
    caller.detach()
    with pytest.raises(EngineExpired):
        prefetch(caller, text(1, 4))
    with pytest.raises(EngineExpired):
        retain(caller, text(1, 4))


def test_a_session_of_another_namespace_has_a_chain_of_its_own() -> None:
    world = make_world()
    one, two = Caller(world, 1), Caller(world, 2, namespace=2)
    one.cache(text(1, 8), 1, session="chat")
    two.cache(text(2, 16), 1, session="chat")
    assert (retain(one, session="chat"), retain(two, session="chat")) == (2, 4)
    assert world.store.memory.retained.count_of(TenantId(1)) == 6
