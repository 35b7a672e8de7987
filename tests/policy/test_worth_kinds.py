"""What is told apart of uses has a bound, and what comes past it is taken together by a rule."""

import numpy as np
import pytest

from kvstore.policy.ages import BINS
from kvstore.policy.hazards import Hazards
from kvstore.policy.kinds import ANY, BUCKETS, COARSE_MAX, KINDS_MAX, REQUESTS_MAX, Kinds


def blocks(count: int, uses: int, gap: float, children: int) -> tuple[np.ndarray, ...]:
    """What is asked of a request's blocks, the same of each."""
    return np.full(count, uses, np.uint8), np.full(count, gap), np.full(count, children, np.uint8)


def request_of(number: int) -> tuple[int, int, int, int, int]:
    """Each another one; the turn is 3."""
    rest = [number // BUCKETS**place % BUCKETS for place in range(3)]
    return (3, rest[0], rest[1], rest[2], number // BUCKETS**3)


def test_of_requests_past_the_bound_only_the_turn_is_told_apart() -> None:
    """Whoever of them comes first."""
    kinds = Kinds()
    for number in range(REQUESTS_MAX):
        kinds.of(request_of(number), *blocks(1, uses=0, gap=-1.0, children=0))
    late = [kinds.of(request_of(number), *blocks(3, uses=2, gap=9.0, children=1)) for number in (2100, 2500)]
    assert late[0].tolist() == late[1].tolist()
    levels = kinds.levels[:, late[0]]
    assert (levels[1:5] == ANY).all()
    assert levels[0].tolist() == [3, 3, 3]
    assert levels[5:].T.tolist() == [[2, 0, 1, 3, 1], [2, 1, 1, 3, 1], [2, 1, 0, 3, 1]]
    # Who was there before is told apart still, and nobody has the place of those who come late.
    assert kinds.levels[:5, kinds.of((3, 7, 7, 0, 0), *blocks(1, 0, -1.0, 0))[0]].tolist() == [3, 7, 7, 0, 0]


def test_of_kinds_past_the_bound_only_the_turn_and_the_uses_and_place_are() -> None:
    kinds, generator = Kinds(), np.random.default_rng(6)
    number = 0
    while kinds.count < KINDS_MAX - COARSE_MAX:
        uses, children = generator.integers(0, 30, (2, 20)).astype(np.uint8)
        kinds.of(request_of(number), uses, generator.exponential(100, 20) - 10, children)
        number += 1
    of = [kinds.of(request_of(1000 + late), *blocks(1, 1, 5.0 * late, late)) for late in range(3)]
    assert of[0].tolist() == of[1].tolist() == of[2].tolist()
    assert kinds.levels[:, of[0][0]].tolist() == [3, ANY, ANY, ANY, ANY, 1, 0, 0, ANY, ANY]


def test_what_is_taken_together_is_expected_to_do_as_all_of_it_does() -> None:
    """And not as requests that are like whichever came first."""
    kinds = Kinds()
    for number in range(REQUESTS_MAX):
        kinds.of(request_of(number), *blocks(1, uses=0, gap=-1.0, children=0))
    (late,) = kinds.of(request_of(2100), *blocks(1, uses=0, gap=-1.0, children=0))
    unread = np.full((BINS, kinds.count), 300.0)
    unread[:, late] = 30_000.0
    read = 0.4 * unread
    read[:, late] = 0.02 * unread[:, late]
    table = Hazards(kinds)
    for _ in range(20):
        for _ in table.fit(read, unread):
            pass
    expected = table.expected(slice(0, kinds.count))
    assert expected[:, late] == pytest.approx(0.02, rel=0.3)
    assert expected[:, 1:late] == pytest.approx(0.4, rel=0.1)
