"""What no session has waits for its copy down while the GPU has room to spare and somebody computes."""

from dataclasses import replace

import pytest

from kvstore.core.calls import Drain
from kvstore.core.errors import ConfigInvalid
from kvstore.core.store import Store
from kvstore.core.types import Retention, Tier
from kvstore.policy.eviction import Lru
from kvstore.policy.swap import LengthThreshold
from tests.core.caller import Caller
from tests.core.forgetting import cached, forget
from tests.core.ops import end_session, free
from tests.core.word import decisions
from tests.core.world import World, keys_of, make_store, text

GPU_FRAMES = 40
PROMPT = text(1, 16)
BLOCKS = 4


def make_caller(share: float = 0.75, *, disk_frames: int = 64) -> Caller:
    config = make_store(gpu_frames=GPU_FRAMES, cpu_frames=64, disk_frames=disk_frames).config
    return Caller(World(Store(replace(config, copy_from_share=share), Lru(), LengthThreshold(8))))


def copied(caller: Caller) -> int:
    """Blocks in the CPU tier, when all has moved that was begun."""
    caller.world.drain()
    return int(caller.world.store.memory.blocks.valid[Tier.CPU].sum())


def compute_beside(caller: Caller, tokens: int = 4) -> None:
    """Another sequence runs from now on."""
    caller.allocate(500, tokens)


def test_it_waits_while_another_computes_and_goes_when_that_has_ended() -> None:
    caller = make_caller()
    compute_beside(caller)
    caller.cache(PROMPT, 1)
    assert copied(caller) == 0
    caller.step(free(500))
    assert copied(caller) == BLOCKS


def test_where_nobody_computes_it_goes_at_once() -> None:
    caller = make_caller()
    caller.cache(PROMPT, 1)
    assert copied(caller) == BLOCKS


def test_an_engine_that_sends_no_step_for_long_does_not_compute() -> None:
    caller = make_caller()
    compute_beside(caller)
    caller.cache(PROMPT, 1)
    caller.world.tick(2.5)
    assert copied(caller) == 0
    caller.keep_alive()
    caller.world.tick(1.0)
    assert copied(caller) == BLOCKS


def test_an_engine_that_is_gone_does_not_compute() -> None:
    caller, other = make_caller(), None
    other = Caller(caller.world, 2)
    compute_beside(other)
    caller.cache(PROMPT, 1)
    assert copied(caller) == 0
    other.detach()
    caller.world.tick(0.1)
    assert copied(caller) == BLOCKS


@pytest.mark.parametrize(
    ("room", "goes"), [(GPU_FRAMES * 3 // 4 - BLOCKS - 1, False), (GPU_FRAMES * 3 // 4 - BLOCKS, True)]
)
def test_it_goes_when_so_many_frames_are_taken(room: int, goes: bool) -> None:
    caller = make_caller()
    compute_beside(caller, 4)
    caller.cache(PROMPT, 1)
    caller.allocate(501, 4 * (room - 1))
    assert copied(caller) == 0
    caller.step()
    assert copied(caller) == (BLOCKS if goes else 0)


def test_all_of_a_chain_goes_heads_first_and_is_found_below() -> None:
    caller = make_caller()
    compute_beside(caller)
    caller.cache(text(1, 8), 1)
    caller.cache((*text(1, 8), *text(2, 24)), 2)
    caller.cache((*text(1, 8), *text(3, 8)), 3)
    assert copied(caller) == 0
    caller.step(free(500))
    assert copied(caller) == 2 + 6 + 2
    assert caller.lookup(keys_of((*text(1, 8), *text(2, 24)))).blocks_cached == 8


def test_what_a_session_has_does_not_wait() -> None:
    caller = make_caller()
    compute_beside(caller)
    caller.cache(PROMPT, 1, session="chat")
    assert copied(caller) == BLOCKS


def test_what_a_session_takes_up_meanwhile_waits_no_longer() -> None:
    caller = make_caller()
    compute_beside(caller)
    caller.cache(PROMPT, 1)
    caller.begin(2, (*PROMPT, *text(2, 4)), session="chat")
    caller.step(free(2))
    caller.step()
    assert copied(caller) == BLOCKS + 1
    caller.step(free(500))
    assert copied(caller) == BLOCKS + 1


def test_what_has_left_meanwhile_is_passed_over_and_so_is_who_has_its_row_now() -> None:
    caller = make_caller()
    compute_beside(caller)
    caller.cache(PROMPT, 1)
    forget(caller.world, tenant="a", namespace=1)
    assert cached(caller, PROMPT) == 0
    # The same rows, of one who runs.
    caller.begin(2, text(2, 16))
    caller.step()
    caller.allocate(3, 4 * 30)
    caller.step()
    assert copied(caller) == 0


def test_what_a_session_that_is_over_had_in_common_goes_without_a_copy() -> None:
    caller = make_caller()
    compute_beside(caller)
    caller.cache(PROMPT, 1)
    caller.begin(2, (*PROMPT, *text(2, 4)), session="over")
    caller.step(free(2, retention=Retention.CACHE))
    caller.step(end_session("over"))
    caller.step(free(500))
    caller.step()
    assert copied(caller) == BLOCKS


def test_before_a_restart_all_of_it_is_written() -> None:
    caller = make_caller()
    compute_beside(caller)
    caller.cache(PROMPT, 1)
    caller.world.handle(Drain(time=caller.world.time))
    caller.world.drain()
    known = {stored.key for stored in caller.world.shadow.disk.find()}
    assert set(keys_of(PROMPT)) <= known


def test_it_is_told_to_who_asks_why() -> None:
    caller = make_caller()
    compute_beside(caller)
    caller.cache(PROMPT, 1)
    [decision] = decisions(caller, kind="admit")
    assert decision.chosen == "not copied yet"
    figures = dict(decision.inputs)
    assert (figures["blocks_put_off"], figures["copy_from_share"]) == (4.0, 0.75)
    assert figures["frames_free"] == GPU_FRAMES - BLOCKS - 1


def test_without_such_a_share_nothing_waits() -> None:
    caller = make_caller(0.0)
    compute_beside(caller)
    caller.cache(PROMPT, 1)
    assert copied(caller) == BLOCKS


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_no_share_is_refused_by_name(share: float) -> None:
    with pytest.raises(ConfigInvalid, match=r"copy_from_share.*0 to 1"):
        make_caller(share)


def test_what_is_due_at_once_goes_in_lots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvstore.core.settling.LOT_BLOCKS", 3)
    caller = make_caller()
    compute_beside(caller)
    caller.cache(PROMPT, 1)
    caller.cache((*text(1, 8), *text(3, 16)), 2)
    assert copied(caller) == 0
    counts = []
    caller.step(free(500))
    for _ in range(4):
        counts.append(copied(caller))
        caller.step()
    assert counts == [3, 6, 8, 8]
    assert caller.lookup(keys_of(PROMPT)).blocks_cached == BLOCKS


def test_what_is_due_is_not_shed_where_few_may_wait() -> None:
    config = make_store(gpu_frames=GPU_FRAMES, cpu_frames=64, disk_frames=64, queue_blocks_max=5).config
    caller = Caller(World(Store(replace(config, copy_from_share=0.75), Lru(), LengthThreshold(8))))
    compute_beside(caller)
    caller.cache(PROMPT, 1)
    caller.cache(text(2, 32), 2)
    caller.step(free(500))
    for _ in range(4):
        caller.world.drain()
        caller.world.tick(0.1)
    assert [tier.blocks_shed for tier in caller.world.store.usage().tiers] == [0, 0, 0]
    assert copied(caller) == BLOCKS + 8


def test_what_is_due_and_left_meanwhile_is_passed_over_in_its_lot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvstore.core.settling.LOT_BLOCKS", 1)
    caller = make_caller()
    compute_beside(caller)
    caller.cache(text(1, 48), 1)
    caller.step(free(500))
    forget(caller.world, tenant="a", namespace=1)
    # The same rows, of one who runs.
    caller.begin(2, text(2, 48))
    caller.step()
    later = caller.world.store._settling._later
    assert later.has_any
    assert later.take(48).size == 0
    assert not later.has_any
