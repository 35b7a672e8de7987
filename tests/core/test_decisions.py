"""What was decided lately, and who is told of it."""

from dataclasses import replace

import numpy as np
import pytest

from kvstore.core.blocks import Blocks
from kvstore.core.calls import Forget
from kvstore.core.config import StoreConfig
from kvstore.core.errors import FieldInvalid
from kvstore.core.explaining import DecisionQuery
from kvstore.core.shares import Shares
from kvstore.core.store import Store
from kvstore.core.types import NamespaceId, Retention, TenantId, domain_id
from kvstore.policy.eviction import Lru
from tests.core.caller import Caller
from tests.core.forgetting import forget, go_on, make_world
from tests.core.ops import free
from tests.core.word import Word, caller_with, decisions, leave, told
from tests.core.world import World, make_store, text


def test_a_swap_is_remembered_with_both_sides_and_whose_it_was() -> None:
    caller = caller_with(Word())
    caller.allocate(1, 8, session="chat")
    leave(caller, 1, 8)
    [decision] = decisions(caller)
    assert (decision.kind, decision.chosen, decision.other) == ("swap", "swap", "drop")
    assert (decision.chosen_cost_seconds, decision.other_cost_seconds) == (1.0, 2.0)
    assert (decision.engine, decision.sequence, decision.session) == (caller.id, 1, "chat")
    assert dict(decision.inputs) == {"word": 1.0, "block_tokens": 4.0, "room_below": 1.0}


def test_one_that_was_overruled_says_so_and_what_it_costs() -> None:
    caller = caller_with(Word(), cpu_frames=0)
    caller.allocate(1, 8)
    leave(caller, 1, 8)
    [decision] = decisions(caller)
    assert (decision.chosen, decision.reason) == ("drop", "no room below the GPU")
    assert (decision.chosen_cost_seconds, decision.other_cost_seconds) == (2.0, 1.0)


def test_decisions_are_found_by_all_that_is_named_the_latest_first() -> None:
    caller = caller_with(Word(), gpu_frames=32, cpu_frames=32)
    for sequence, session in ((1, "a"), (2, "b"), (3, "a")):
        caller.allocate(sequence, 8, session=session)
        leave(caller, sequence, 8)
        caller.world.drain()
    caller.swap_in(1)
    assert [each.sequence for each in decisions(caller)] == [3, 2, 1]
    assert [each.sequence for each in decisions(caller, session="a")] == [3, 1]
    assert [each.sequence for each in decisions(caller, sequence=2)] == [2]
    assert decisions(caller, sequence=2, session="a") == []
    assert decisions(caller, engine="another") == []
    assert decisions(caller, kind="evict") == []
    assert [each.number for each in told(caller)] == [3, 2, 1]
    assert [each.number for each in told(caller, before=3)] == [2, 1]


def test_evictions_are_remembered_by_the_lot_and_told_to_those_whose_blocks_they_were() -> None:
    caller = caller_with(Word(), cpu_frames=0)
    caller.cache(text(1, 16), 1, session="chat")
    caller.cache(text(2, 16), 2, session="other")
    caller.allocate(3, 12)
    [lot] = decisions(caller, kind="evict")
    assert (lot.chosen, lot.engine) == ("from the GPU by Lru", "")
    assert lot.reason == "a sequence begins"
    figures = dict(lot.inputs)
    assert (figures["blocks"], figures["blocks_lost"], figures["blocks_of_sessions"]) == (3.0, 3.0, 3.0)
    assert (figures["frames_free"], figures["frames_lacking"]) == (0.0, 3.0)
    [mine] = decisions(caller, session="chat", kind="evict")
    assert dict(mine.inputs)["blocks_of_this_session"] == 3.0
    assert decisions(caller, session="other", kind="evict") == []


def test_what_goes_to_disk_and_what_is_shed_is_remembered() -> None:
    caller = caller_with(Word(), disk_frames=16, queue_blocks_max=3)
    caller.cache(text(1, 16), 1, session="chat")
    caller.world.drain()
    found = decisions(caller, kind="admit", session="chat")
    assert found
    assert {each.chosen for each in found} <= {"written to disk", "shed"}
    figures = dict(found[0].inputs)
    assert figures["queue_blocks_max"] == 3.0
    assert figures["blocks_taken"] + figures["blocks_shed"] == figures["blocks_of_this_session"]


def test_each_decision_says_whose_it_is_where_there_are_several_tenants() -> None:
    caller = caller_with(Word(), disk_frames=16)
    caller.cache(text(1, 16), 1, session="chat", tenant="b")
    caller.world.drain()
    caller.allocate(2, 8)
    leave(caller, 2, 8)
    assert [each.tenant for each in decisions(caller, kind="admit")] == ["b"]
    assert [each.tenant for each in decisions(caller, kind="swap")] == ["a"]


def test_of_a_lot_with_blocks_of_several_tenants_none_is_named() -> None:
    caller = caller_with(Word(), gpu_frames=16, cpu_frames=0)
    for number, tenant in enumerate("ab"):
        caller.cache(text(number, 16), 10 + number, tenant=tenant)
    caller.allocate(20, 60)
    assert [each.tenant for each in decisions(caller, kind="evict")] == [""]
    world = caller_with(Word(), gpu_frames=16, cpu_frames=0)
    world.cache(text(1, 16), 10, tenant="b")
    world.allocate(20, 60)
    assert [each.tenant for each in decisions(world, kind="evict")] == ["b"]


def test_sessions_of_one_name_in_two_tenants_are_told_apart() -> None:
    caller = caller_with(Word(), gpu_frames=16, cpu_frames=64)
    for sequence, tenant in ((1, "a"), (2, "b"), (3, "a")):
        caller.allocate(sequence, 8, session="chat", tenant=tenant)
        leave(caller, sequence, 8)
    assert [each.sequence for each in decisions(caller, session="chat")] == [3, 2, 1]
    assert [each.sequence for each in decisions(caller, session="chat", tenant="a")] == [3, 1]
    assert [each.sequence for each in decisions(caller, session="chat", tenant="b")] == [2]
    assert [each.sequence for each in decisions(caller, tenant="b")] == [2]
    assert decisions(caller, sequence=1, tenant="b") == []
    assert decisions(caller, tenant="nobody") == []
    count = caller.world.store.explaining.count(DecisionQuery(session="chat", tenant="a"))
    assert count == 2


def test_a_lot_is_told_to_the_tenants_whose_blocks_it_has_and_to_those_for_whom_it_went() -> None:
    caller = caller_with(Word(), gpu_frames=16, cpu_frames=0)
    caller.cache(text(1, 24), 10, session="chat", tenant="a")
    caller.cache(text(2, 24), 11, session="chat", tenant="b")
    caller.allocate(20, 60, session="new", tenant="a")
    [lot] = told(caller, kind="evict")
    assert lot.decision.tenant == ""
    tenant_of = caller.world.store.explaining.tenant_of
    assert {(tenant_of(each.domain), each.session) for each in lot.blocks_of} == {
        ("a", "chat"),
        ("b", "chat"),
    }
    assert [(tenant_of(each.domain), each.session) for each in lot.room_for] == [("a", "new")]
    mine_too: dict[str, object] = {"session": "chat", "tenant": "b"}
    queries: list[dict[str, object]] = [{"tenant": "a"}, {"tenant": "b"}, mine_too, {"sequence": 20}]
    for query in queries:
        assert [each.number for each in told(caller, kind="evict", **query)] == [lot.number], query
    # Of the one that is asked for, its own blocks alone are counted.
    both, mine = (
        dict(decisions(caller, kind="evict", session="chat", **more)[0].inputs)["blocks_of_this_session"]
        for more in ({}, {"tenant": "b"})
    )
    assert 0 < mine < both
    queries = [{"session": "new", "tenant": "b"}, {"sequence": 20, "tenant": "b"}]
    for query in queries:
        assert told(caller, kind="evict", **query) == [], query


def test_a_tenant_whose_blocks_no_session_names_is_found_by_its_lots() -> None:
    caller = caller_with(Word(), gpu_frames=16, cpu_frames=0)
    for number, tenant in enumerate("ab"):
        caller.cache(text(number, 16), 10 + number, tenant=tenant)
    caller.allocate(20, 60, tenant="a")
    [lot] = told(caller, kind="evict")
    assert (lot.decision.tenant, lot.tenants) == ("", ("a", "b"))
    assert [each.number for each in told(caller, kind="evict", tenant="b")] == [lot.number]


def test_the_only_tenant_may_be_named() -> None:
    tenants = {"only": TenantId(1)}
    config = replace(
        make_store(cpu_frames=16).config, tenants=tenants, default_tenant="only", tenant_shares={}
    )
    caller = Caller(World(Store(config, Lru(), Word())))
    caller.allocate(1, 8, session="chat")
    leave(caller, 1, 8)
    assert len(decisions(caller, tenant="only")) == len(decisions(caller)) == 1
    assert decisions(caller, tenant="b") == []
    explaining = caller.world.store.explaining
    assert explaining.knows(DecisionQuery(tenant="only", session="chat"))
    assert not explaining.knows(DecisionQuery(tenant="b"))


def test_where_there_is_one_tenant_nobody_has_to_be_told_whose_it_was() -> None:
    shares = Shares(StoreConfig(block_tokens=4, gpu_frames=4), Blocks(4))
    assert shares.tenant_of(domain_id(NamespaceId(1), TenantId(1))) == ""
    assert shares.tenants_of(np.arange(2)) == ()


def test_what_is_forgotten_is_not_told_of_any_more() -> None:
    caller = caller_with(Word(), gpu_frames=32, cpu_frames=32)
    for sequence, session in ((1, "a"), (2, "b")):
        caller.allocate(sequence, 8, session=session)
        leave(caller, sequence, 8)
    caller.world.handle(Forget(time=caller.world.time, session="a"))
    assert [each.session for each in decisions(caller)] == ["b"]
    with pytest.raises(FieldInvalid):
        caller.world.handle(Forget(time=caller.world.time))
    assert len(decisions(caller)) == 1
    caller.world.handle(Forget(time=caller.world.time, tenant="a"))
    assert decisions(caller) == []


def test_a_forget_of_one_tenants_session_leaves_what_was_decided_of_anothers() -> None:
    """Both call theirs by one name."""
    caller = caller_with(Word(), gpu_frames=16, cpu_frames=32)
    for number, tenant in ((1, ""), (2, "b")):
        caller.cache(text(number, 16), number, session="chat", tenant=tenant)
    caller.world.drain()
    caller.allocate(3, 60, session="chat", tenant="b")
    leave(caller, 3, 60)
    caller.world.handle(Forget(time=caller.world.time, session="chat", tenant="a"))
    assert told(caller, session="chat", tenant="a") == []
    theirs = told(caller, session="chat", tenant="b")
    assert {each.decision.kind for each in theirs} == {"swap", "evict"}
    whose = [each for told_of in theirs for each in told_of.blocks_of]
    assert {(each.session, each.domain) for each in whose} == {
        ("chat", domain_id(NamespaceId(1), TenantId(2)))
    }
    caller.world.handle(Forget(time=caller.world.time, session="chat", tenant="b"))
    assert "chat" not in repr(told(caller))


def test_after_a_forget_nothing_that_is_told_names_the_session() -> None:
    """Neither alone nor in a lot with others' blocks, nor as the one for whom room was made."""
    caller = caller_with(Word(), gpu_frames=12, cpu_frames=24, disk_frames=64)
    for number, session in ((1, "secret"), (2, "other")):
        caller.cache(text(number, 16), number, session=session)
    caller.world.drain()
    caller.allocate(3, 40, session="secret")
    leave(caller, 3, 40)
    caller.world.drain()
    caller.allocate(4, 44)
    before = told(caller)
    assert {each.decision.kind for each in told(caller, session="secret")} == {"swap", "evict", "admit"}
    caller.world.handle(Forget(time=caller.world.time, session="secret"))
    assert told(caller, session="secret") == []
    assert "secret" not in repr(told(caller))
    # The lots are told of all the same, and of the others in them.
    assert len([each for each in told(caller) if each.decision.kind in ("evict", "admit")]) == len(
        [each for each in before if each.decision.kind in ("evict", "admit")]
    )
    assert told(caller, session="other")
    # What was allocated for it before, and goes on, is not named for it any more.
    caller.step(free(4, retention=Retention.DISCARD))
    caller.step()
    caller.swap_in(3)
    caller.world.drain()
    caller.step()
    leave(caller, 3, 40)
    caller.world.drain()
    assert "secret" not in repr(told(caller))
    assert decisions(caller, sequence=3)


def test_what_is_decided_while_a_forget_goes_on_is_forgotten_with_it() -> None:
    world = make_world(disk_frames=0, cpu_frames=0, gpu_frames=24, lot=4)
    caller = Caller(world)
    caller.cache(text(1, 64), 1, session="secret")
    begun = forget(world, session="secret")
    assert begun.lots_left
    caller.allocate(2, 60)
    # Of what was still to be taken out some has made room.
    assert told(caller, session="secret")
    while not go_on(world, begun).done:
        pass
    assert told(caller, session="secret") == []
    assert "secret" not in repr(told(caller))


def test_whether_what_is_asked_of_is_known() -> None:
    caller = caller_with(Word(), gpu_frames=32, cpu_frames=32)
    caller.allocate(1, 8, session="chat")
    caller.cache(text(2, 16), 2, session="kept")
    explaining = caller.world.store.explaining

    def knows(**named: object) -> bool:
        return explaining.knows(DecisionQuery(**named))  # type: ignore[arg-type]

    # Nothing was decided of either; one has a sequence, the other waits for its next turn.
    assert told(caller, session="chat") == []
    assert knows(session="chat")
    assert knows(session="kept")
    assert knows(sequence=1, engine=caller.id)
    assert knows()
    assert not knows(session="nobody")
    assert not knows(session="chat", sequence=2)
    assert not knows(sequence=77)
    assert not knows(engine="nobody")
    leave(caller, 1, 8)
    caller.step(free(1, retention=Retention.DISCARD))
    caller.step()
    assert knows(session="chat")
    # It is the one of tenant a, the default.
    assert knows(session="chat", tenant="a")
    assert not knows(session="chat", tenant="b")
    assert knows(tenant="b")
    assert not knows(tenant="nobody")
    assert explaining.engines(caller.id[:4]) == [caller.id]
    assert explaining.engines("none") == []
