"""What no session owns goes to disk where a policy says that it is worth the write, and else not."""

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from kvstore.core.ports import Figures
from kvstore.core.store import Store
from kvstore.core.types import Rows, Tier
from kvstore.policy.eviction import Lru
from kvstore.policy.swap import LengthThreshold
from kvstore.policy.worth import Worth
from kvstore.sim.stores import EVICTIONS
from tests.core.caller import Caller
from tests.core.world import World, keys_of, make_store, text

TOKENS = text(1, 16)
KEYS = keys_of(TOKENS)


class Heads:
    """Admits so many blocks from the head of a chain on, by tier."""

    def __init__(self, counts: dict[str, int]) -> None:
        self.store: Store | None = None
        self._counts = counts

    def admits(self, targets: Sequence[Tier], rows: Rows) -> list[NDArray[np.bool_]]:
        assert self.store is not None
        depths = self.store.memory.blocks.depth[rows]
        # Given from tails to heads.
        assert (np.diff(depths) < 0).all()
        return [depths < self._counts.get(target.name.lower(), 0) for target in targets]

    def told(self, target: Tier, rows: Rows, *, are_turns: bool = False) -> Figures:
        return (("chance_wanted", 0.5),)

    def admits_turns(self, rows: Rows) -> NDArray[np.bool_]:
        raise AssertionError("turns are not judged unless it is asked for")


def caller_of(counts: dict[str, int]) -> Caller:
    config = make_store(gpu_frames=16, cpu_frames=16, disk_frames=32).config
    admission = Heads(counts)
    store = admission.store = Store(config, Lru(), LengthThreshold(8), admission)
    return Caller(World(store))


@pytest.mark.parametrize(
    ("counts", "on_cpu", "on_disk"),
    [({}, 0, 0), ({"cpu": 4}, 4, 0), ({"cpu": 2}, 2, 0), ({"disk": 3}, 3, 3), ({"cpu": 4, "disk": 1}, 4, 1)],
)
def test_a_chain_goes_down_as_far_as_it_is_admitted(
    counts: dict[str, int], on_cpu: int, on_disk: int
) -> None:
    caller = caller_of(counts)
    caller.cache(TOKENS)
    caller.world.drain()
    blocks = caller.world.store.memory.blocks
    assert int(blocks.valid[Tier.CPU].sum()) == on_cpu
    assert [key.key for key in caller.world.shadow.disk.find()] == list(KEYS[:on_disk])


def test_what_a_session_owns_is_not_asked_about() -> None:
    caller = caller_of({})
    caller.cache(TOKENS, session="s")
    caller.world.drain()
    assert len(caller.world.shadow.disk) == 4


def test_without_a_policy_it_goes_to_the_cpu_tier_and_no_further() -> None:
    caller = Caller(World(make_store(gpu_frames=16, cpu_frames=16, disk_frames=32)))
    caller.cache(TOKENS)
    caller.world.drain()
    assert caller.world.free_frames() == (12, 12, 32)


def test_how_likely_it_is_that_blocks_come_back_is_reckoned_once_for_both_tiers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caller = Caller(World(make_store(eviction=EVICTIONS.index("worth"), cpu_frames=16, disk_frames=32)))
    asked: list[int] = []
    reckon = Worth.chance_with_children

    def noted(policy: Worth, rows: Rows) -> NDArray[np.float64]:
        asked.append(rows.size)
        return reckon(policy, rows)

    monkeypatch.setattr(Worth, "chance_with_children", noted)
    caller.cache(TOKENS)
    assert asked == [4]
