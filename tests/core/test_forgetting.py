"""What was forgotten can't be found any more: in no tier, by nobody, before a restart or after it."""

from typing import Any

import numpy as np
import pytest

from kvstore.core.answers import ForgetAnswer, KeepAliveAnswer
from kvstore.core.calls import Forget, ForgetOn
from kvstore.core.errors import CheckFailed, FieldInvalid, TenantRefused, TooManyForgets
from kvstore.core.operations import EndSession, SwapResult
from kvstore.core.types import (
    ForgetId,
    NamespaceId,
    SequenceId,
    SequenceState,
    TenantId,
    Tier,
    WriterId,
    domain_id,
)
from tests.core.caller import Caller, moves
from tests.core.ops import commit, fork, free, swap_in, swap_out
from tests.core.world import World, keys_of, make_store, text

DOMAIN = domain_id(NamespaceId(1), TenantId(1))


def make_world(disk_frames: int = 32, lot: int = 100, cpu_frames: int = 16, gpu_frames: int = 16) -> World:
    store = make_store(
        gpu_frames=gpu_frames,
        cpu_frames=cpu_frames,
        disk_frames=disk_frames,
        forget_lot_blocks=lot,
        transfers_per_link_max=1,
    )
    return World(store)


def forget(world: World, **what: Any) -> ForgetAnswer:
    answer = world.handle(Forget(time=world.time, **what)).answer
    assert isinstance(answer, ForgetAnswer)
    return answer


def go_on(world: World, answer: ForgetAnswer) -> ForgetAnswer:
    after = world.handle(ForgetOn(time=world.time, forget=answer.forget)).answer
    assert isinstance(after, ForgetAnswer)
    return after


def turn(caller: Caller, sequence: int, tokens: tuple[int, ...], session: str = "chat", **more: Any) -> None:
    """Written to disk when the world is drained."""
    caller.begin(sequence, tokens, session=session, **more)
    caller.step(free(sequence))


def restart(world: World, number: int = 9, namespace: int = 1) -> Caller:
    world.restart(make_store(gpu_frames=16, cpu_frames=16, disk_frames=32, transfers_per_link_max=1))
    return Caller(world, number, namespace=namespace)


def cached(caller: Caller, tokens: tuple[int, ...], tenant: str = "") -> int:
    return caller.lookup(keys_of(tokens), tenant).blocks_cached


def hold_up_reads(world: World, caller: Caller) -> None:
    """Another is being read, and the link takes one at a time."""
    assert world.store.config.transfers_per_link_max == 1
    caller.allocate(8, 5, keys_of(text(8, 4)))
    assert world.moving(Tier.DISK, Tier.CPU)


# ------------------------------------------------------------------------------------ what


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
    leaving = world.store.memory.room.removable(tier, np.array(rows[::-1]))
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


# -------------------------------------------------------------------------------- in lots


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
