"""A chain is brought up before anybody needs it, at nobody's cost."""

import pytest

from kvstore.core.types import SequenceState, Tier
from tests.core.caller import Caller, moves
from tests.core.chains import cached, chat_on_disk, prefetch
from tests.core.forgetting import forget
from tests.core.world import keys_of, text


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
