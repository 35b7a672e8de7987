"""Eviction by worth: who goes, in which order, and that nobody is passed over."""

import numpy as np
import pytest

from kvstore.core.ports import RowSource
from kvstore.core.types import CPU, GPU
from kvstore.policy.order import UseOrder
from kvstore.policy.worth import Worth
from tests.policy.uses import rows_of, use


def test_before_anything_is_known_it_is_least_recently_used() -> None:
    policy = Worth()
    policy.begin(100)
    for index in range(10):
        rows = np.arange(3) + 3 * index
        use(policy, 20.0 * index, rows, rows)
    assert policy.victims(GPU, 6, lambda rows: rows).tolist() == [2, 1, 0, 5, 4, 3]


def test_a_session_that_is_over_goes_first_but_not_what_others_use() -> None:
    policy = Worth()
    policy.begin(100)
    use(policy, 0.0, np.arange(0, 6), np.arange(0, 6))
    # Another chain on the same two leading blocks.
    use(policy, 50.0, np.array([0, 1, 10, 11, 12]), np.array([0, 1, 10, 11, 12]), found=2)
    policy.retire(rows_of(12, 11, 10, 1, 0))
    assert policy.victims(GPU, 3, lambda rows: rows).tolist() == [12, 11, 10]
    assert policy.victims(GPU, 9, lambda rows: rows).tolist()[-2:] == [1, 0]


def test_what_was_over_is_forgotten_with_the_block_and_not_kept_for_the_next_in_its_row() -> None:
    """Of which nobody may tell: its engine is gone."""
    policy = Worth()
    policy.begin(100)
    use(policy, 0.0, np.arange(3), np.arange(3))
    use(policy, 0.0, np.arange(3, 6), np.arange(3, 6))
    policy.touch(CPU, rows_of(0))
    policy.retire(rows_of(2, 1, 0))
    policy.forget(GPU, rows_of(2, 1, 0))
    # One has a copy below still, and is still over.
    assert policy.worth(rows_of(0, 1, 2)).tolist()[0] == 0.0
    assert (policy.worth(rows_of(1, 2)) > 0).all()
    use(policy, 1_000.0, np.arange(6, 8), np.arange(6, 8))
    policy.touch(GPU, rows_of(2, 1))
    assert policy.victims(GPU, 5, lambda rows: rows).tolist()[:3] == [5, 4, 3]


def test_what_is_favoured_goes_last_by_priority() -> None:
    policy = Worth()
    policy.begin(100)
    use(policy, 0.0, np.arange(10), np.arange(10))
    assert policy.victims(GPU, 1, lambda rows: rows).tolist() == [9]
    policy.favour(rows_of(1, 0), np.array([1, 2], np.int32))
    assert policy.victims(GPU, 10, lambda rows: rows).tolist() == [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]
    policy.favour(rows_of(9), np.array([3], np.int32))
    assert policy.victims(GPU, 10, lambda rows: rows).tolist() == [8, 7, 6, 5, 4, 3, 2, 1, 0, 9]
    use(policy, 500.0, np.arange(10, 13), np.arange(10, 13))
    policy.unfavour(rows_of(9, 1, 0))
    assert policy.victims(GPU, 6, lambda rows: rows).tolist() == [8, 7, 6, 5, 4, 3]


def test_what_may_not_go_is_passed_over_and_all_else_found() -> None:
    policy = Worth()
    policy.begin(20_000)
    use(policy, 0.0, np.arange(19_000), np.arange(19_000))
    victims = policy.victims(GPU, 30, lambda rows: rows[rows % 1_000 == 7])
    assert sorted(victims.tolist()) == [7 + 1_000 * each for each in range(19)]


def test_a_sample_has_no_part_of_a_chain_without_its_tail() -> None:
    order, together = UseOrder(20_000), np.repeat(np.arange(40), 500)
    for chain in range(40):
        order.append(np.arange(500 * chain, 500 * chain + 500))
    lengths: set[int] = set()
    for turn in range(30):
        rows = order.sample(8_192, turn, 32, together)
        for chain in np.unique(together[rows]).tolist():
            sampled = np.sort(rows[together[rows] == chain])
            assert sampled.tolist() == list(range(500 * chain, 500 * chain + sampled.size))
            lengths.add(sampled.size)
    assert len(lengths) > 5


def test_who_only_looks_changes_no_choice() -> None:
    """So a journal is replayed with every invariant checked as it is without."""
    generator = np.random.default_rng(5)
    alone, looked_at = Worth(), Worth()
    for policy in (alone, looked_at):
        policy.begin(200)
    time = 0.0
    for _ in range(400):
        time += float(10 ** generator.uniform(-2, 2))
        start, size = int(generator.integers(0, 180)), int(generator.integers(1, 20))
        rows = np.arange(start, start + size)
        for policy in (alone, looked_at):
            use(policy, time, rows, 1 + rows)
        with looked_at.looking():
            looked_at.victims(GPU, int(generator.integers(1, 200)), lambda rows: rows)
        if generator.random() < 0.3:
            count = int(generator.integers(1, 8))
            victims = [
                policy.victims(GPU, count, lambda rows: rows).tolist() for policy in (alone, looked_at)
            ]
            assert victims[0] == victims[1]


def test_victims_are_found_among_those_that_are_judged_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains that are all worth the same, of which a look cuts many in the middle."""
    policy, length = Worth(), 100
    policy.begin(40_000)
    for index in range(400):
        rows = np.arange(length) + length * index
        use(policy, 1.0, rows, rows)

    evicted: set[int] = set()

    def removable(rows: np.ndarray) -> np.ndarray:
        """After what hangs on it."""
        gone = set(evicted)
        for row in rows.tolist():
            if row % length == length - 1 or row + 1 in gone:
                gone.add(row)
        return np.array([row for row in rows.tolist() if row in gone], np.intp)

    monkeypatch.setattr(UseOrder, "all", None)
    for _ in range(50):
        victims = policy.victims(GPU, 200, removable)
        assert victims.size == 200
        evicted.update(victims.tolist())
        policy.forget(GPU, victims)


def test_a_block_used_again_is_no_victim_of_an_earlier_look() -> None:
    policy = Worth()
    policy.begin(1_000)
    for index in range(20):
        rows = np.arange(10) + 10 * index
        use(policy, 100.0 * index, rows, rows)
    first = policy.victims(GPU, 5, lambda rows: rows)
    policy.forget(GPU, first)
    assert not np.isin(policy.victims(GPU, 5, lambda rows: rows), first).any()
    use(policy, 2_000.0, np.arange(10), np.arange(10), found=5)
    assert not np.isin(policy.victims(GPU, 5, lambda rows: rows), np.arange(10)).any()


def below(limit: int) -> RowSource:
    return lambda rows: rows[rows < limit]


def test_who_finds_too_few_and_asks_again_has_nothing_judged_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a store does, which spares fewer each time; and what may go then is what it would be otherwise."""
    policy = Worth()
    policy.begin(1_000)
    for index in range(20):
        rows = np.arange(10) + 10 * index
        use(policy, 100.0 * index, rows, rows)
    asked: list[int] = []
    worth = policy.worth

    def noted(rows: np.ndarray) -> np.ndarray:
        asked.append(rows.size)
        return worth(rows)

    monkeypatch.setattr(policy, "worth", noted)
    for limit in (0, 3, 150):
        victims = policy.victims(GPU, 60, below(limit))
    assert asked == [200]
    everything = policy.victims(GPU, 200, lambda rows: rows)
    assert victims.tolist() == everything[everything < 150][:60].tolist()
    policy.forget(GPU, rows_of(199))
    assert policy.victims(GPU, 200, lambda rows: rows).tolist() == everything[everything != 199].tolist()
    assert asked == [200, 199]


def test_what_is_favoured_is_judged_with_all_once(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Worth()
    policy.begin(100)
    use(policy, 0.0, np.arange(50), np.arange(50))
    policy.favour(rows_of(1, 0), np.array([2, 1], np.int32))
    before = [policy.victims(GPU, 50, below(end)).tolist() for end in (10, 2)]
    assert before == [[9, 8, 7, 6, 5, 4, 3, 2, 0, 1], [0, 1]]
    monkeypatch.setattr(policy, "worth", None)
    assert policy.victims(GPU, 50, below(10)).tolist() == before[0]
