"""Drop or swap by length."""

import pytest

from kvstore.policy.swap import LengthThreshold


@pytest.mark.parametrize(("token_count", "keeps"), [(0, False), (1, False), (256, False), (257, True)])
def test_short_sequences_are_dropped_and_long_ones_kept(token_count: int, keeps: bool) -> None:
    assert LengthThreshold(256).keeps(token_count) is keeps


def test_a_threshold_of_zero_keeps_all_that_holds_anything() -> None:
    policy = LengthThreshold(0)
    assert policy.keeps(1)
    assert not policy.keeps(0)


def test_the_figures_it_rested_on_can_be_read_back() -> None:
    inputs = dict(LengthThreshold(256).inputs(300))
    assert inputs == {"tokens": 300.0, "drop_tokens_max": 256.0}
    assert all(isinstance(value, float) for value in inputs.values())
