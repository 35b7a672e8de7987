"""Forgotten while somebody uses it, moves it or waits for it: never published again, and nobody hangs."""

from typing import Any

import numpy as np
import pytest

from kvstore.core.answers import KeepAliveAnswer
from kvstore.core.calls import Drain
from kvstore.core.operations import EndSession, SwapResult
from kvstore.core.types import (
    NamespaceId,
    Outcome,
    SequenceId,
    SequenceState,
    TenantId,
    Tier,
    WriterId,
    domain_id,
)
from tests.core.caller import Caller, moves
from tests.core.forgetting import cached, forget, go_on, make_world, restart, turn
from tests.core.ops import commit, fork, free, swap_in, swap_out
from tests.core.world import World, keys_of, text

DOMAIN = domain_id(NamespaceId(1), TenantId(1))


def hold_up_reads(world: World, caller: Caller) -> None:
    """Another is being read, and the link takes one at a time."""
    assert world.store.config.transfers_per_link_max == 1
    caller.allocate(8, 5, keys_of(text(8, 4)))
    assert world.moving(Tier.DISK, Tier.CPU)


# ---------------------------------------------------------------------- what is in use


def test_blocks_in_use_keep_their_frames_and_are_never_published_again() -> None:
    world = make_world()
    caller = Caller(world)
    tokens = text(1, 16)
    caller.begin(1, tokens, session="chat")
    caller.step()
    assert cached(caller, tokens) == 4
    forget(world, session="chat")
    assert cached(caller, tokens) == 0
    caller.read(caller.table(1), tokens)
    # It runs on, and what it commits from here on stays its own.
    longer = (*tokens, *text(2, 8))
    table = caller.allocate(1, 24).block_table
    caller.write(table, longer, 16)
    caller.step(commit(1, keys_of(longer)[4:], 4))
    caller.step()
    assert cached(caller, longer) == 0
    caller.step(free(1))
    caller.step()
    assert len(world.store.sessions) == 0
    world.drain()
    assert world.free_frames() == (16, 16, 32)


def test_another_engine_that_uses_what_was_forgotten_publishes_nothing_behind_it() -> None:
    world = make_world()
    one, two = Caller(world, 1), Caller(world, 2)
    one.cache(text(1, 8))
    tokens = (*text(1, 8), *text(2, 8))
    two.begin(1, tokens)
    forget(world, writers=(WriterId(1),))
    longer = (*tokens, *text(3, 4))
    table = two.allocate(1, 20).block_table
    two.write(table, longer, 16)
    two.step(commit(1, keys_of(longer)[4:], 4))
    two.step()
    assert cached(two, longer) == 0
    # What it writes anew can be found.
    two.cache((*text(1, 8), *text(4, 4)), sequence=2)
    assert cached(two, (*text(1, 8), *text(4, 4))) == 3
    two.read(two.table(1), longer)


@pytest.mark.parametrize(
    "what", [{"session": "chat"}, {"tenant": "a"}, {"namespace": NamespaceId(1)}, {"writers": (WriterId(1),)}]
)
def test_a_commit_whose_fence_has_not_passed_is_never_published(what: dict[str, Any]) -> None:
    world = make_world()
    caller = Caller(world)
    tokens = text(1, 16)
    table = caller.allocate(1, 16, keys_of(tokens)[:3], session="chat").block_table
    caller.write(table, tokens)
    caller.step(commit(1, keys_of(tokens)), free(1), completed=0)
    other = Caller(world, 2)
    # The engine itself can find it already.
    assert (cached(caller, tokens), cached(other, tokens)) == (4, 0)
    forget(world, **what)
    assert cached(caller, tokens) == 0
    caller.step(completed=2)
    assert (cached(caller, tokens), cached(other, tokens)) == (0, 0)
    assert len(world.store.sessions) == 0
    world.drain()
    assert world.free_frames() == (16, 16, 32)


def test_the_same_text_computed_again_is_found_while_the_old_one_is_still_used() -> None:
    world = make_world()
    caller = Caller(world)
    caller.begin(1, text(1, 16), session="chat")
    forget(world, session="chat")
    world.drain()
    turn(caller, 2, text(1, 16), session="chat")
    assert cached(caller, text(1, 16)) == 4
    caller.step(free(1))
    caller.step()
    assert cached(caller, text(1, 16)) == 4
    assert len(world.store.sessions) == 1


def test_the_fork_of_a_forgotten_sequence_publishes_nothing_either() -> None:
    world = make_world()
    caller = Caller(world)
    tokens = text(1, 8)
    table = caller.allocate(1, 8, keys_of(tokens)[:1], session="chat").block_table
    caller.write(table, tokens)
    forget(world, session="chat")
    caller.step(fork(1, 2))
    caller.step(commit(2, keys_of(tokens)))
    caller.step()
    assert cached(caller, tokens) == 0


# -------------------------------------------------------------------- what is under way


def test_a_block_that_is_being_written_is_deleted_when_it_has_come() -> None:
    world = make_world()
    caller = Caller(world)
    turn(caller, 1, text(1, 16))
    world.end(world.moving(Tier.GPU, Tier.CPU)[0])
    (writing,) = world.moving(Tier.CPU, Tier.DISK)
    answer = forget(world, session="chat")
    assert cached(caller, text(1, 16)) == 0
    # Nothing is asked of the disk while that runs.
    assert (world.syncs, go_on(world, answer).done) == ([], False)
    world.end(writing)
    assert len(world.shadow.disk) == 0
    assert len(world.syncs) == 1
    world.end_sync()
    assert go_on(world, answer).done
    assert world.free_frames() == (16, 16, 32)


def test_a_block_that_is_being_copied_does_not_come_back() -> None:
    world = make_world()
    caller = Caller(world)
    turn(caller, 1, text(1, 16))
    forget(world, session="chat")
    world.drain()
    assert world.free_frames() == (16, 16, 32)
    assert cached(restart(world), text(1, 16)) == 0


@pytest.mark.parametrize("moved", ["not yet", "being read", "read", "being loaded"])
def test_who_waits_for_what_is_forgotten_computes_it(moved: str) -> None:
    world = make_world()
    caller = Caller(world)
    turn(caller, 1, text(1, 16))
    turn(caller, 8, text(8, 4), session="other")
    world.drain()
    caller = restart(world)
    if moved == "not yet":
        hold_up_reads(world, caller)
    result = caller.allocate(1, 17, keys_of(text(1, 16)), session="chat")
    assert (result.state, result.cached_tokens) == (SequenceState.SWAPPING_IN, 16)
    if moved in ("read", "being loaded"):
        world.end(world.moving(Tier.DISK, Tier.CPU)[0])
    answer = forget(world, session="chat")
    assert caller.state(1) is SequenceState.RESIDENT
    news = caller.keep_alive()
    assert isinstance(news, KeepAliveAnswer)
    assert [(each.state, each.valid_tokens) for each in moves(news.notices)] == [(SequenceState.RESIDENT, 0)]
    world.drain()
    assert go_on(world, answer).done
    assert [name[2] for name in world.shadow.disk] == [*keys_of(text(8, 4))]
    caller.write(caller.table(1), text(1, 17))
    caller.read(caller.table(1), text(1, 17))
    caller.step(free(1, *([8] if moved == "not yet" else [])))
    caller.step(EndSession(session="other"))
    # Of the other's block, which two have used, the cache is left.
    assert world.free_frames() == ((15, 15, 31) if moved == "not yet" else (16, 16, 32))


def swapped_with_a_copy_on_disk(world: World, caller: Caller) -> None:
    """Text 1 of a session lies on disk, and sequence 2, which goes on from it, is swapped out."""
    turn(caller, 1, text(1, 16))
    world.drain()
    tokens = (*text(1, 16), *text(2, 4))
    table = caller.allocate(2, 20, keys_of(tokens), session="chat").block_table
    caller.write(table, tokens, 16)
    caller.swap_out(2, 20)
    caller.step()
    world.drain()
    assert caller.state(2) is SequenceState.SWAPPED


def test_a_swapped_sequence_keeps_what_lies_in_the_cpu_tier() -> None:
    world = make_world()
    caller = Caller(world)
    swapped_with_a_copy_on_disk(world, caller)
    forget(world, session="chat")
    assert len(world.shadow.disk) == 0
    world.drain()
    result = caller.swap_in(2)
    world.drain()
    assert result.valid_tokens == 20
    caller.read(caller.table(2), (*text(1, 16), *text(2, 4)))


def leave(world: World, tier: Tier, rows: list[int]) -> None:
    """As if others had needed the frames."""
    leaving = world.store.memory.room.going.removable(tier, np.array(rows[::-1]))
    assert len(leaving) == len(rows)
    world.store.memory.evict(tier, leaving)


def test_a_swapped_sequence_loses_what_lies_on_disk_alone() -> None:
    world = make_world()
    caller = Caller(world)
    swapped_with_a_copy_on_disk(world, caller)
    leave(world, Tier.CPU, caller.sequence(2).claimed[2:4].tolist())
    forget(world, session="chat")
    assert len(world.shadow.disk) == 0
    result = caller.swap_in(2)
    assert result.valid_tokens == 8
    tokens = (*text(1, 16), *text(2, 4))
    world.drain()
    caller.write(caller.table(2), tokens, 8)
    caller.read(caller.table(2), tokens)
    # It can commit what it has computed again, in order; it stays its own.
    caller.step(commit(2, keys_of(tokens)[2:], 2))
    caller.step(free(2))
    caller.step()
    assert cached(caller, tokens) == 0
    assert world.free_frames() == (16, 16, 32)


def test_who_comes_back_and_waits_for_the_disk_loses_what_lies_there() -> None:
    world = make_world()
    caller = Caller(world)
    swapped_with_a_copy_on_disk(world, caller)
    caller.cache(text(8, 4), sequence=3, session="other")
    world.drain()
    other = world.store.memory.prefix.find(DOMAIN, *keys_of(text(8, 4)))
    for tier in (Tier.CPU, Tier.GPU):
        leave(world, tier, caller.sequence(2).claimed[:4].tolist())
        leave(world, tier, [int(other or 0)])
    hold_up_reads(world, caller)
    assert caller.swap_in(2).valid_tokens == 20
    forget(world, session="chat")
    assert len(world.shadow.disk) == 1
    world.drain()
    news = {each.sequence: each for each in moves(caller.keep_alive().notices)}
    assert (news[SequenceId(2)].state, news[SequenceId(2)].valid_tokens) == (SequenceState.RESIDENT, 0)


@pytest.mark.parametrize("cancelled", [False, True])
def test_who_leaves_the_gpu_and_counts_on_the_disks_copy_is_dropped(cancelled: bool) -> None:
    """Unless it comes back before its last work has ended: all is on the GPU still."""
    world = make_world()
    caller = Caller(world)
    turn(caller, 1, text(1, 16))
    world.drain()
    caller = restart(world)
    caller.allocate(2, 17, keys_of(text(1, 16)), session="chat")
    world.drain()
    leave(world, Tier.CPU, caller.sequence(2).rows[:4].tolist())
    caller.step(swap_out(2, 16), completed=0)
    assert caller.state(2) is SequenceState.SWAPPING_OUT
    forget(world, session="chat")
    world.drain()
    assert len(world.shadow.disk) == 0
    if cancelled:
        result = caller.one(SwapResult, swap_in(2), completed=0)
        assert (result.state, result.valid_tokens) == (SequenceState.RESIDENT, 16)
        caller.read(caller.table(2), text(1, 16))
        caller.swap_out(2, 16)
        world.drain()
        assert caller.state(2) is SequenceState.SWAPPED
    else:
        caller.step()
        assert caller.state(2) is SequenceState.DROPPED
    caller.step(free(2))
    caller.step()
    assert world.free_frames() == (16, 16, 32)


def test_a_swap_that_is_cancelled_does_not_wait_for_a_write_to_disk() -> None:
    """A write reads the CPU tier's copy. Its end is no news to who waits for copies there."""
    world = make_world()
    caller = Caller(world)
    tokens = text(1, 10)
    caller.begin(1, tokens)
    caller.step()
    world.handle(Drain(time=world.time, on=True))
    (copy,) = world.moving(Tier.GPU, Tier.CPU)
    world.end(copy)
    assert world.moving(Tier.CPU, Tier.DISK)
    done = caller.step_number
    caller.step(swap_out(1, 10), completed=done)
    forget(world, writers=(WriterId(1),))
    assert caller.one(SwapResult, swap_in(1), completed=done).outcome is Outcome.OK
    world.drain()
    caller.step()
    assert caller.state(1) is SequenceState.RESIDENT
    caller.read(caller.table(1), tokens)
