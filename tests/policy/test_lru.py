"""Least recently used, against a plain slow reference."""

import random
from collections.abc import Callable, Collection

import numpy as np
import pytest

from kvstore.core.ports import RowSource
from kvstore.core.types import Rows, Tier
from kvstore.policy import eviction
from kvstore.policy.eviction import Lru


class Slow:
    """The same order as a list, searched from its front each time."""

    def __init__(self) -> None:
        self.orders: dict[Tier, list[int]] = {tier: [] for tier in Tier}
        self.priority: dict[int, int] = {}

    def touch(self, tier: Tier, rows: list[int]) -> None:
        self.forget(tier, rows)
        self.orders[tier] += rows

    def favour(self, rows: list[int], priority: int) -> None:
        for order in self.orders.values():
            new = [row for row in rows if row in order and row not in self.priority]
            order[:] = [row for row in order if row not in new] + new
        self.priority |= dict.fromkeys(rows, priority)

    def unfavour(self, rows: list[int]) -> None:
        for order in self.orders.values():
            new = [row for row in rows if row in order and row in self.priority]
            order[:] = [row for row in order if row not in new] + new
        for row in rows:
            self.priority.pop(row, None)

    def forget(self, tier: Tier, rows: list[int]) -> None:
        self.orders[tier] = [row for row in self.orders[tier] if row not in rows]

    def victims(self, tier: Tier, count: int, fixed: Collection[int]) -> list[int]:
        order = sorted(self.orders[tier], key=lambda row: self.priority.get(row, -100))
        return [row for row in order if row not in fixed][:count]


def make_lru(capacity: int = 1000) -> Lru:
    lru = Lru()
    lru.begin(capacity)
    return lru


def every(rows: Rows) -> Rows:
    return rows


def all_but(fixed: Collection[int]) -> RowSource:
    return lambda rows: rows[~np.isin(rows, list(fixed))]


def rows(*numbers: int) -> Rows:
    return np.array(numbers, np.intp)


def test_the_block_used_longest_ago_goes_first() -> None:
    lru = make_lru()
    lru.touch(Tier.GPU, rows(1, 2, 3))
    lru.touch(Tier.GPU, rows(1))
    assert lru.victims(Tier.GPU, 2, every).tolist() == [2, 3]


def test_of_a_chain_touched_from_its_tail_the_tail_goes_first() -> None:
    lru = make_lru()
    lru.touch(Tier.GPU, rows(13, 12, 11))
    lru.touch(Tier.GPU, rows(23, 22, 11))
    assert lru.victims(Tier.GPU, 9, every).tolist() == [13, 12, 23, 22, 11]


def test_a_chain_touched_again_in_part_keeps_its_head_longest() -> None:
    lru = make_lru()
    lru.touch(Tier.GPU, rows(14, 13, 12, 11))
    lru.touch(Tier.GPU, rows(12, 11))
    assert lru.victims(Tier.GPU, 4, every).tolist() == [14, 13, 12, 11]


def test_what_was_forgotten_is_no_victim() -> None:
    lru = make_lru()
    lru.touch(Tier.GPU, rows(1, 2, 3))
    lru.forget(Tier.GPU, rows(2, 99))
    assert lru.victims(Tier.GPU, 9, every).tolist() == [1, 3]


def test_tiers_have_orders_of_their_own() -> None:
    lru = make_lru()
    lru.touch(Tier.GPU, rows(1, 2))
    lru.touch(Tier.CPU, rows(2, 1))
    lru.forget(Tier.GPU, rows(1))
    assert lru.victims(Tier.GPU, 9, every).tolist() == [2]
    assert lru.victims(Tier.CPU, 9, every).tolist() == [2, 1]
    assert lru.victims(Tier.DISK, 9, every).tolist() == []


def test_asking_changes_nothing() -> None:
    lru = make_lru()
    lru.touch(Tier.CPU, rows(*range(1000)))
    first = lru.victims(Tier.CPU, 600, every).tolist()
    assert lru.victims(Tier.CPU, 600, every).tolist() == first
    assert lru.victims(Tier.CPU, 2000, every).tolist() == list(range(1000))


def test_only_removable_blocks_are_victims_and_fewer_are_told_when_there_are_fewer() -> None:
    lru = make_lru()
    lru.touch(Tier.GPU, rows(*range(10)))
    odd = range(1, 10, 2)
    assert lru.victims(Tier.GPU, 3, all_but(odd)).tolist() == [0, 2, 4]
    assert lru.victims(Tier.GPU, 9, all_but(odd)).tolist() == [0, 2, 4, 6, 8]
    assert lru.victims(Tier.GPU, 1, lambda candidates: candidates[:0]).tolist() == []


def test_a_child_and_its_parent_may_go_together_from_anywhere_in_the_order() -> None:
    """What may go depends on what goes before it: the policy asks about all candidates so far."""
    lru = make_lru()
    lru.touch(Tier.GPU, rows(*range(1000)))

    def removable(candidates: Rows) -> Rows:
        # Block 0 hangs on nothing and all others on it.
        return np.roll(candidates, -1) if len(candidates) == 1000 else candidates[1:]

    assert lru.victims(Tier.GPU, 1000, removable)[-1] == 0


@pytest.mark.parametrize("with_favour", [False, True])
@pytest.mark.parametrize("window", [1, 2, 256])
def test_it_agrees_with_the_reference(
    window: int, with_favour: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eviction, "WINDOW", window)
    rng = random.Random(window)
    lru, slow = make_lru(60), Slow()
    for _ in range(1500):
        tier = rng.choice(list(Tier))
        some = rng.sample(range(60), rng.randrange(8))
        match rng.randrange(6 if with_favour else 4):
            case 4:
                priority = rng.randrange(-2, 3)
                lru.favour(rows(*some), np.full(len(some), priority, np.int32))
                slow.favour(some, priority)
            case 5:
                lru.unfavour(rows(*some))
                slow.unfavour(some)
            case 0 | 1:
                lru.touch(tier, rows(*some))
                slow.touch(tier, some)
            case 2:
                lru.forget(tier, rows(*some))
                slow.forget(tier, some)
            case 3:
                fixed = rng.sample(range(60), 30)
                count = rng.randrange(1, 40)
                victims = lru.victims(tier, count, all_but(fixed))
                assert victims.tolist() == slow.victims(tier, count, fixed)


def test_what_is_favoured_goes_last_and_by_priority() -> None:
    lru = make_lru()
    lru.touch(Tier.GPU, rows(1, 2, 3, 4, 5))
    lru.favour(rows(2, 1), np.array([7, 7], np.int32))
    lru.favour(rows(3), np.array([5], np.int32))
    assert lru.victims(Tier.GPU, 9, every).tolist() == [4, 5, 3, 2, 1]
    # Asked for few, nobody looks at them.
    assert lru.victims(Tier.GPU, 2, every).tolist() == [4, 5]
    lru.touch(Tier.GPU, rows(2))
    lru.unfavour(rows(3))
    assert lru.victims(Tier.GPU, 9, every).tolist() == [4, 5, 3, 1, 2]


def test_case_6_15_what_evicting_one_block_costs_does_not_grow_with_what_is_cached() -> None:
    looked = []
    for population in (10_000, 100_000):
        lru = make_lru(population)
        lru.touch(Tier.CPU, np.arange(population))
        asked: list[int] = []

        def removable(candidates: Rows, asked: list[int] = asked) -> Rows:
            asked.append(len(candidates))
            return candidates

        lru.victims(Tier.CPU, 8, removable)
        looked.append(sum(asked))
    assert looked[0] == looked[1] <= 2 * eviction.WINDOW


@pytest.mark.parametrize("count", [100, 2_000])
def test_case_6_20_evicting_many_costs_the_same_among_ten_thousand_and_a_million(count: int) -> None:
    """Also where most of the log counts no more, as each block was used again and again. Counted, not timed:
    rows asked about, and places in the log that were looked at."""
    asked, looked = [], []
    for population in (10_000, 1_000_000):
        lru = make_lru(population)
        for _ in range(3):
            for start in range(0, population, population // 10):
                lru.touch(Tier.CPU, np.arange(start, start + population // 10))
        asked.append(0)
        looked.append(0)
        order = lru._orders[Tier.CPU]
        counting = order._counting

        def count_looks(begin: int, end: int, counting: Callable[[int, int], Rows] = counting) -> Rows:
            looked[-1] += end - begin
            return counting(begin, end)

        def removable(candidates: Rows) -> Rows:
            asked[-1] += len(candidates)
            return candidates

        lru.victims(Tier.CPU, 1, every)
        order._counting = count_looks  # type: ignore[method-assign]
        for _ in range(3):
            victims = lru.victims(Tier.CPU, count, removable)
            assert len(victims) == count
            lru.forget(Tier.CPU, victims)
    assert asked[0] == asked[1]
    # The shorter log ends before some looks do.
    assert looked[0] <= looked[1] <= 20 * count + 10 * eviction.WINDOW
