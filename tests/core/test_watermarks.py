"""Watermarks that are set while the store runs: all or none, and they hold at once."""

import pytest

from kvstore.core.answers import Done
from kvstore.core.calls import SetLimits
from kvstore.core.errors import FieldInvalid
from kvstore.core.notices import PressureChanged
from kvstore.core.types import Pressure, Tier, Watermarks
from tests.core.caller import Caller
from tests.core.world import World, make_store


@pytest.fixture
def caller() -> Caller:
    return Caller(World(make_store(gpu_frames=10, cpu_frames=10)))


def set_marks(caller: Caller, *marks: Watermarks) -> None:
    effects = caller.world.handle(SetLimits(time=caller.world.time, watermarks=marks))
    assert isinstance(effects.answer, Done)


def marks(tier: Tier, high: float, low: float) -> Watermarks:
    return Watermarks(tier=tier, high=high, low=low)


def pressure(caller: Caller, tier: Tier) -> Pressure:
    return caller.world.store.usage().tiers[tier].pressure


def test_what_is_set_holds_at_once_and_is_told(caller: Caller) -> None:
    caller.allocate(1, 5 * 4)
    caller.world.tick(0.2)
    assert pressure(caller, Tier.GPU) is Pressure.LOW
    set_marks(caller, marks(Tier.GPU, 0.5, 0.4))
    assert pressure(caller, Tier.GPU) is Pressure.HIGH
    (notice,) = [each for each in caller.keep_alive().notices if isinstance(each, PressureChanged)]
    assert (notice.tier, notice.pressure) == (Tier.GPU, Pressure.HIGH)
    set_marks(caller, marks(Tier.GPU, 0.7, 0.6))
    assert pressure(caller, Tier.GPU) is Pressure.LOW


def test_between_the_marks_it_stays_what_it_was(caller: Caller) -> None:
    caller.allocate(1, 5 * 4)
    set_marks(caller, marks(Tier.GPU, 0.5, 0.4))
    set_marks(caller, marks(Tier.GPU, 0.6, 0.4))
    assert pressure(caller, Tier.GPU) is Pressure.HIGH


def test_each_tier_has_its_own(caller: Caller) -> None:
    before = caller.world.store.memory.watermarks[Tier.CPU]
    set_marks(caller, marks(Tier.GPU, 0.5, 0.4))
    assert caller.world.store.memory.watermarks[Tier.CPU] == before
    set_marks(caller, marks(Tier.CPU, 0.3, 0.3), marks(Tier.GPU, 1.0, 0.01))
    assert caller.world.store.memory.watermarks[Tier.CPU] == marks(Tier.CPU, 0.3, 0.3)
    assert caller.world.store.memory.watermarks[Tier.GPU] == marks(Tier.GPU, 1.0, 0.01)


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (marks(Tier.DISK, 0.9, 0.8), "limits.high_watermark[disk]"),
        (marks(Tier.GPU, 0.0, 0.0), "limits.high_watermark[gpu]"),
        (marks(Tier.GPU, 1.01, 0.8), "limits.high_watermark[gpu]"),
        (marks(Tier.GPU, float("nan"), 0.8), "limits.high_watermark[gpu]"),
        (marks(Tier.CPU, 0.5, 0.6), "limits.low_watermark[cpu]"),
        (marks(Tier.CPU, 0.5, 0.0), "limits.low_watermark[cpu]"),
        (marks(Tier.CPU, 0.5, float("nan")), "limits.low_watermark[cpu]"),
    ],
)
def test_what_can_not_be_is_refused_and_nothing_is_set(caller: Caller, bad: Watermarks, field: str) -> None:
    store = caller.world.store
    before = [store.memory.watermarks[tier] for tier in (Tier.GPU, Tier.CPU)]
    with pytest.raises(FieldInvalid) as caught:
        set_marks(caller, marks(Tier.GPU, 0.5, 0.4), bad)
    assert caught.value.field == field
    assert caught.value.remedy
    assert [store.memory.watermarks[tier] for tier in (Tier.GPU, Tier.CPU)] == before
