"""The order of use as a log: what is taken of it, however much of the log counts no more."""

import numpy as np
import pytest

from kvstore.policy.order import DEAD_MIN, UseOrder


def used(capacity: int, rounds: int, live: int) -> tuple[UseOrder, list[int]]:
    """`live` rows, used by turns in runs of ten; others come and go beside them. Told by a list as well."""
    order = UseOrder(capacity)
    expected: list[int] = []
    generator = np.random.default_rng(1)
    for index in range(rounds):
        begin = 10 * int(generator.integers(live // 10))
        rows = np.arange(begin, begin + 10)
        order.append(rows)
        expected = [row for row in expected if row not in set(rows.tolist())] + rows.tolist()
        gone = live + (index + np.arange(5)) % (capacity - live)
        order.append(gone)
        order.remove(gone)
    return order, expected


@pytest.mark.parametrize("capacity", [300, 200_000], ids=["a short log", "a long log"])
def test_the_order_is_of_last_uses_and_its_length_of_rows(capacity: int) -> None:
    order, expected = used(capacity, rounds=3_000, live=200)
    assert order.all().tolist() == expected
    assert len(order) == len(expected)
    assert order.first(50).tolist() == expected[:50]


@pytest.mark.parametrize("capacity", [300, 200_000], ids=["a short log", "a long log"])
def test_looks_at_the_oldest_leave_the_order_as_it_is(capacity: int) -> None:
    """However much behind the oldest counts no more: it is closed up, and found as before."""
    order, expected = UseOrder(capacity), list(range(200))
    order.append(np.arange(200))
    generator = np.random.default_rng(2)
    for _ in range(2_000):
        # All but the oldest five are used again and again; now and then one of these goes.
        rows = np.array(expected)[5 + generator.choice(len(expected) - 5, 20, replace=False)]
        order.append(rows)
        expected = [row for row in expected if row not in set(rows.tolist())] + rows.tolist()
        if generator.random() < 0.05:
            order.remove(np.array(expected[:1]))
            expected = expected[1:]
        count = int(generator.integers(1, 120))
        assert order.first(count).tolist() == expected[:count]
    assert order.all().tolist() == expected
    assert len(order) == len(expected) < 150


def test_a_log_of_few_rows_is_short() -> None:
    """Though it has room for all rows that there are."""
    order, _ = used(200_000, rounds=3_000, live=200)
    assert order._end - order._begin <= 2 * len(order) + DEAD_MIN + 20


def test_a_sample_is_of_as_many_rows_as_were_asked_for() -> None:
    """Where most of the log counts no more, too; and all of them, where there are not more."""
    order, expected = used(6_000, rounds=3_000, live=4_000)
    lone = np.arange(6_000)
    assert order.sample(4_000, 1, 32, lone).tolist() == expected
    for turn in range(20):
        sampled = order.sample(1_000, turn, 32, lone)
        assert np.unique(sampled).size == sampled.size
        assert 700 < sampled.size < 1_300
