"""Pressure without a look at every frame: told as if all were counted each time, and counted where it may
matter."""

import pytest

from kvstore.core.events import Tick
from kvstore.core.types import CPU, GPU, Pressure, Tier
from tests.core.caller import Caller
from tests.core.ops import free
from tests.core.swapped import caller_of, written

FRAMES = 40


def looks(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> list[Tier]:
    """Which tiers a tick looks at, frame by frame. The world, which checks all that is true, is passed by."""
    world, tiers = caller.world, []
    world.time += 0.2
    count = world.store.gauge.count_busy

    def noted(tier: Tier) -> int:
        tiers.append(tier)
        return count(tier)

    with monkeypatch.context() as patched:
        patched.setattr(world.store.gauge, "count_busy", noted)
        world.store.handle(Tick(time=world.time))
    return tiers


def test_far_from_the_watermarks_nothing_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    caller = caller_of(gpu_frames=FRAMES, cpu_frames=FRAMES)
    looked: list[Tier] = []
    for number in range(8):
        written(caller, number, 3 * 4)
        looked += looks(caller, monkeypatch)
    # 24 references of 40 frames can't be above the high watermark, whoever has them.
    assert looked == []
    for number in range(8):
        caller.step(free(number))
    for number in range(8, 16):
        written(caller, number, 3 * 4)
        looked += looks(caller, monkeypatch)
    # 48 may be, as far as is known; one count tells that they are not, and does for the rest.
    assert looked == [GPU]


@pytest.mark.parametrize("size", [1, 3])
def test_it_is_told_as_if_all_were_counted(size: int) -> None:
    """Up through both watermarks and down again: 36 of 40 frames are high, below 32 are low."""
    caller = caller_of(gpu_frames=FRAMES, cpu_frames=FRAMES)
    store, states = caller.world.store, []
    marks = store.memory.watermarks[GPU]
    expected = Pressure.LOW
    numbers = range(FRAMES // size)
    for change in [*[(number, True) for number in numbers], *[(number, False) for number in numbers]]:
        number, comes = change
        if comes:
            written(caller, number, size * 4)
        else:
            caller.step(free(number))
        caller.world.tick(0.2)
        share = store.gauge.count_busy(GPU) / FRAMES
        if share >= marks.high:
            expected = Pressure.HIGH
        elif share < marks.low:
            expected = Pressure.LOW
        assert store.gauge.pressure[GPU] is expected, share
        states.append(expected)
    assert states[0] is states[-1] is Pressure.LOW
    assert Pressure.HIGH in states


def test_claims_below_count_for_the_cpu_tier() -> None:
    caller = caller_of(gpu_frames=FRAMES, cpu_frames=10)
    written(caller, 1, 10 * 4)
    caller.world.tick(0.2)
    assert caller.world.store.gauge.pressure[CPU] is Pressure.LOW
    caller.swap_out(1, 10 * 4)
    caller.world.drain()
    caller.world.tick(0.2)
    assert caller.world.store.gauge.pressure[CPU] is Pressure.HIGH
    caller.swap_in(1)
    caller.world.drain()
    caller.world.tick(0.2)
    assert caller.world.store.gauge.pressure[CPU] is Pressure.LOW
