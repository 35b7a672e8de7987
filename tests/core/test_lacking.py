"""Room that is not there is looked for once, until something has changed that may have made some."""

from collections.abc import Callable

import pytest

from kvstore.core.events import Tick
from kvstore.core.ports import RowSource
from kvstore.core.types import CPU, GPU, LATER, OK, Rows, Tier
from tests.core.caller import Caller
from tests.core.fuzz import Fuzz
from tests.core.ops import free
from tests.core.swapped import caller_of, written
from tests.core.world import keys_of, text


def searches(caller: Caller, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> list[Tier]:
    """In which tiers `act` has victims looked for; what the world looks at, to check, is left out."""
    eviction, tiers = caller.world.store.memory.eviction, []
    victims = eviction.victims

    def noted(tier: Tier, count: int, removable: RowSource) -> Rows:
        tiers.append(tier)
        return victims(tier, count, removable)

    with monkeypatch.context() as patched:
        patched.setattr(eviction, "victims", noted)
        patched.setattr("kvstore.sim.world.check_invariants", lambda store: None)
        act()
    return tiers


def test_who_asks_again_has_nothing_searched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    caller = caller_of(gpu_frames=8, cpu_frames=8)
    written(caller, 1, 8 * 4)
    assert caller.allocate(2, 4).outcome is LATER
    assert searches(caller, monkeypatch, lambda: caller.allocate(2, 4)) == []
    # Nor is there room for more.
    assert searches(caller, monkeypatch, lambda: caller.allocate(3, 3 * 4)) == []
    caller.step(free(1))
    assert caller.allocate(2, 4).outcome is OK


def test_a_prompt_that_hits_has_nothing_searched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    caller = caller_of(gpu_frames=8, cpu_frames=0)
    tokens = text(5, 16)
    caller.cache(tokens)
    written(caller, 1, 4 * 4)

    def ask() -> None:
        result = caller.allocate(2, 9 * 4 - 8, keys_of(tokens))
        assert result.outcome is LATER

    assert searches(caller, monkeypatch, ask) != []
    assert searches(caller, monkeypatch, ask) == []
    # Whoever does not hold the prefix may have its frames.
    assert caller.allocate(3, 4 * 4).outcome is LATER
    caller.step(free(2))
    assert caller.allocate(3, 4 * 4).outcome is OK


def test_a_lane_that_finds_no_room_looks_once_however_often_time_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caller = caller_of(gpu_frames=16, cpu_frames=8)
    written(caller, 1, 4 * 4)
    caller.swap_out(1, 4 * 4)
    written(caller, 2, 4 * 4)
    caller.swap_out(2, 4 * 4)
    caller.world.drain()
    # Swapped sequences hold all of the CPU tier: what is to be copied down finds no room.
    caller.cache(text(3, 16), session="chat")

    def ticks() -> None:
        for _ in range(5):
            caller.world.time += 0.2
            caller.world.store.handle(Tick(time=caller.world.time))

    searched = searches(caller, monkeypatch, ticks)
    assert searched.count(CPU) == searched.count(GPU) == 0


def test_what_is_taken_to_be_lacking_is_not_there() -> None:
    """The world's invariants look for it all again after each event; here, that there was something to check,
    where tenants share and where they don't."""
    known = {1: 0, 2: 0}
    for seed in range(8):
        fuzz = Fuzz(seed, gpu_frames=10, cpu_frames=6, disk_frames=12 if seed % 2 else 0)
        memory = fuzz.world.store.memory
        for _ in range(120):
            fuzz.turn()
            known[1 + memory.shares.are_shared] += len(memory.lacking.searches())
    assert max(known.values()) > 20
