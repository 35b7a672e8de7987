"""Least recently used, against a plain slow reference."""

import random
from collections.abc import Sequence

import pytest

from kvstore.core.types import BlockRow, Tier
from kvstore.policy import eviction
from kvstore.policy.eviction import Lru


class Slow:
    """The same order as a list, searched from its front each time."""

    def __init__(self) -> None:
        self.orders: dict[Tier, list[BlockRow]] = {tier: [] for tier in Tier}

    def touch(self, tier: Tier, rows: Sequence[BlockRow]) -> None:
        self.forget(tier, rows)
        self.orders[tier] += rows

    def forget(self, tier: Tier, rows: Sequence[BlockRow]) -> None:
        self.orders[tier] = [row for row in self.orders[tier] if row not in rows]

    def victims(self, tier: Tier, count: int, fixed: set[BlockRow]) -> list[BlockRow]:
        return [row for row in self.orders[tier] if row not in fixed][:count]


def all_but(fixed: set[BlockRow]):
    return lambda rows: [row for row in rows if row not in fixed]


def rows(*numbers: int) -> list[BlockRow]:
    return [BlockRow(number) for number in numbers]


def test_the_block_used_longest_ago_goes_first() -> None:
    lru = Lru()
    lru.touch(Tier.GPU, rows(1, 2, 3))
    lru.touch(Tier.GPU, rows(1))
    assert lru.victims(Tier.GPU, 2, list) == rows(2, 3)


def test_of_a_chain_touched_from_its_tail_the_tail_goes_first() -> None:
    lru = Lru()
    lru.touch(Tier.GPU, rows(13, 12, 11))
    lru.touch(Tier.GPU, rows(23, 22, 11))
    assert lru.victims(Tier.GPU, 9, list) == rows(13, 12, 23, 22, 11)


def test_a_chain_touched_again_in_part_keeps_its_head_longest() -> None:
    lru = Lru()
    lru.touch(Tier.GPU, rows(14, 13, 12, 11))
    lru.touch(Tier.GPU, rows(12, 11))
    assert lru.victims(Tier.GPU, 4, list) == rows(14, 13, 12, 11)


def test_what_was_forgotten_is_no_victim() -> None:
    lru = Lru()
    lru.touch(Tier.GPU, rows(1, 2, 3))
    lru.forget(Tier.GPU, rows(2, 99))
    assert lru.victims(Tier.GPU, 9, list) == rows(1, 3)


def test_tiers_have_orders_of_their_own() -> None:
    lru = Lru()
    lru.touch(Tier.GPU, rows(1, 2))
    lru.touch(Tier.CPU, rows(2, 1))
    lru.forget(Tier.GPU, rows(1))
    assert lru.victims(Tier.GPU, 9, list) == rows(2)
    assert lru.victims(Tier.CPU, 9, list) == rows(2, 1)
    assert lru.victims(Tier.DISK, 9, list) == []


def test_asking_changes_nothing() -> None:
    lru = Lru()
    lru.touch(Tier.CPU, rows(*range(1000)))
    first = lru.victims(Tier.CPU, 600, list)
    assert lru.victims(Tier.CPU, 600, list) == first
    assert lru.victims(Tier.CPU, 2000, list) == rows(*range(1000))


def test_only_removable_blocks_are_victims_and_fewer_are_told_when_there_are_fewer() -> None:
    lru = Lru()
    lru.touch(Tier.GPU, rows(*range(10)))
    odd = {row for row in rows(*range(10)) if row % 2}
    assert lru.victims(Tier.GPU, 3, all_but(odd)) == rows(0, 2, 4)
    assert lru.victims(Tier.GPU, 9, all_but(odd)) == rows(0, 2, 4, 6, 8)
    assert lru.victims(Tier.GPU, 1, lambda candidates: []) == []


def test_a_child_and_its_parent_may_go_together_from_anywhere_in_the_order() -> None:
    """What may go depends on what goes before it: the policy asks about all candidates so far."""
    lru = Lru()
    lru.touch(Tier.GPU, rows(*range(1000)))

    def removable(candidates: Sequence[BlockRow]) -> list[BlockRow]:
        # Block 0 hangs on nothing and all others on it.
        return [*candidates[1:], BlockRow(0)] if len(candidates) == 1000 else list(candidates[1:])

    assert lru.victims(Tier.GPU, 1000, removable)[-1] == 0


@pytest.mark.parametrize("window", [1, 2, 256])
def test_it_agrees_with_the_reference(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eviction, "WINDOW", window)
    rng = random.Random(window)
    lru, slow = Lru(), Slow()
    for _ in range(1500):
        tier = rng.choice(list(Tier))
        some = [BlockRow(row) for row in rng.sample(range(60), rng.randrange(8))]
        match rng.randrange(4):
            case 0 | 1:
                lru.touch(tier, some)
                slow.touch(tier, some)
            case 2:
                lru.forget(tier, some)
                slow.forget(tier, some)
            case 3:
                fixed = {BlockRow(row) for row in rng.sample(range(60), 30)}
                count = rng.randrange(1, 40)
                assert lru.victims(tier, count, all_but(fixed)) == slow.victims(tier, count, fixed)


def test_a_scan_looks_at_a_row_a_bounded_number_of_times() -> None:
    """Row 6.15: what evicting one block costs does not grow with what is cached."""
    looked = []
    for population in (10_000, 100_000):
        lru = Lru()
        lru.touch(Tier.CPU, rows(*range(population)))
        asked: list[int] = []

        def removable(candidates: Sequence[BlockRow], asked: list[int] = asked) -> list[BlockRow]:
            asked.append(len(candidates))
            return list(candidates)

        lru.victims(Tier.CPU, 8, removable)
        looked.append(sum(asked))
    assert looked[0] == looked[1] <= 2 * eviction.WINDOW
