"""How busy, and what a second is worth then."""

import pytest

from kvstore.core.busy import HeldShare
from kvstore.policy.load import BusyShare, Price


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 0.9])
def test_a_steady_load_is_what_it_is(share: float) -> None:
    busy, time = BusyShare(), 0.0
    while time < 10:
        time += 0.02
        busy.add(0.02 * share, time)
    assert busy.at(time) == pytest.approx(share, abs=0.01)


def test_more_work_than_time_counts_as_all_of_it() -> None:
    """Two engines on one machine, each with a GPU of its own."""
    busy, time = BusyShare(), 0.0
    while time < 10:
        time += 0.05
        busy.add(0.05, time)
        busy.add(0.05, time)
    assert busy.at(time) == pytest.approx(1.0, abs=0.01)


def test_what_is_not_told_is_rest() -> None:
    busy = BusyShare()
    for n in range(100):
        busy.add(0.1, n / 10)
    assert busy.at(9.9) > 0.95
    assert busy.at(13.0) < 0.1


def test_the_price_is_one_over_what_is_left_and_at_most_ten() -> None:
    for share, price in ((0.0, 1.0), (0.5, 2.0), (0.8, 5.0), (0.95, 10.0), (1.0, 10.0)):
        assert Price().at(share) == pytest.approx(price)


def test_a_price_holds_until_it_is_off_by_a_tenth() -> None:
    price = Price()
    assert price.at(0.5) == pytest.approx(2.0)
    assert price.at(0.53) == pytest.approx(2.0)
    assert price.at(0.47) == pytest.approx(2.0)
    assert price.at(0.6) == pytest.approx(2.5)


def test_a_share_of_the_time_follows_what_holds() -> None:
    held = HeldShare(1.0)
    held.set(True, 0.0)
    assert held.at(0.5) == pytest.approx(1 - 0.6065, abs=1e-3)
    held.set(True, 3.0)
    assert held.at(5.0) > 0.99
    held.set(False, 5.0)
    assert held.at(6.0) == pytest.approx(0.3679 * held.at(5.0), abs=1e-3)
    # Half of the time, in short turns.
    for n in range(400):
        held.set(n % 2 == 0, 10 + n / 20)
    assert held.at(30.0) == pytest.approx(0.5, abs=0.05)
