"""Drop or swap by length."""

import math

import pytest

from kvstore.core.ports import Departure
from kvstore.policy.swap import LengthThreshold


@pytest.mark.parametrize(("token_count", "keeps"), [(1, False), (256, False), (257, True), (100_000, True)])
def test_only_what_is_longer_than_the_threshold_is_swapped_out(token_count: int, keeps: bool) -> None:
    assert LengthThreshold(256).leave(Departure(time=0.0, tokens=token_count)).keeps is keeps


def test_zero_swaps_all_that_holds_anything() -> None:
    policy = LengthThreshold(0)
    assert policy.leave(Departure(time=0.0, tokens=1)).keeps
    assert not policy.leave(Departure(time=0.0, tokens=0)).keeps


def test_a_decision_says_what_it_rested_on() -> None:
    verdict = LengthThreshold(256).leave(Departure(time=0.0, tokens=300))
    assert dict(verdict.inputs) == {"tokens": 300.0, "drop_tokens_max": 256.0}
    assert verdict.reason == "by length"


def test_without_costs_nothing_that_rests_is_held() -> None:
    assert LengthThreshold(0).hold_seconds(Departure(time=0.0, tokens=300), 0.0) == 0.0 != math.inf
