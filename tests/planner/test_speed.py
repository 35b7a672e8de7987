"""What the planner's speed is held against."""

import pytest

from bench.planner import find_bare


@pytest.mark.parametrize(
    ("capacity", "found"),
    [
        # Nothing of the fourth prompt, behind a block that was never there.
        (10, 2 + 1 + 0 + 2),
        # The tail of a prompt goes first: 3, and then 2.
        (2, 2 + 1 + 0 + 1),
        (1, 1 + 1 + 0 + 0),
    ],
)
def test_a_bare_lru_by_hand(capacity, found):
    assert find_bare([(1, 2), (1, 2, 3), (1,), (9, 1, 2), (1, 2)], capacity) == found
