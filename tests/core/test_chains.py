"""Which chain is meant by Prefetch and Retain: tenants, namespaces, what is refused."""

from typing import Any

import pytest

from kvstore.core.calls import Prefetch, Retain
from kvstore.core.errors import EngineExpired, FieldInvalid, TenantRefused
from kvstore.core.types import BlockKey, TenantId, Tier
from tests.core.caller import Caller
from tests.core.chains import chat_on_disk, make_world, prefetch, retain
from tests.core.world import keys_of, text


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
