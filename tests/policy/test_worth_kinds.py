"""What is told apart of uses has a bound, and what comes past it is taken together by a rule."""

import numpy as np
import pytest

from bench.replay import hashes_of
from kvstore.core.ports import Use
from kvstore.core.types import GPU
from kvstore.policy.ages import BINS
from kvstore.policy.hazards import Hazards
from kvstore.policy.kinds import ANY, BUCKETS, COARSE_MAX, KINDS_MAX, REQUESTS_MAX, Kinds
from kvstore.policy.worth import Worth
from tests.policy.uses import kinds_of


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
        kinds_of(kinds, request_of(number), *blocks(1, uses=0, gap=-1.0, children=0))
    same = blocks(3, uses=2, gap=9.0, children=1)
    late = [kinds_of(kinds, request_of(number), *same) for number in (2100, 2500)]
    assert late[0].tolist() == late[1].tolist()
    levels = kinds.levels[:, late[0]]
    assert (levels[1:5] == ANY).all()
    assert levels[0].tolist() == [3, 3, 3]
    assert levels[5:].T.tolist() == [[2, 0, 1, 3, 1], [2, 1, 1, 3, 1], [2, 1, 0, 3, 1]]
    # Who was there before is told apart still, and nobody has the place of those who come late.
    assert kinds.levels[:5, kinds_of(kinds, (3, 7, 7, 0, 0), *blocks(1, 0, -1.0, 0))[0]].tolist() == [
        3,
        7,
        7,
        0,
        0,
    ]


def test_of_kinds_past_the_bound_only_the_turn_and_the_uses_and_place_are() -> None:
    kinds, generator = Kinds(), np.random.default_rng(6)
    number = 0
    while kinds.count < KINDS_MAX - COARSE_MAX:
        uses, children = generator.integers(0, 30, (2, 20)).astype(np.uint8)
        kinds_of(kinds, request_of(number), uses, generator.exponential(100, 20) - 10, children)
        number += 1
    of = [kinds_of(kinds, request_of(1000 + late), *blocks(1, 1, 5.0 * late, late)) for late in range(3)]
    assert of[0].tolist() == of[1].tolist() == of[2].tolist()
    assert kinds.levels[:, of[0][0]].tolist() == [3, ANY, ANY, ANY, ANY, 1, 0, 0, ANY, ANY]


def test_what_is_taken_together_is_expected_to_do_as_all_of_it_does() -> None:
    """And not as requests that are like whichever came first."""
    kinds = Kinds()
    for number in range(REQUESTS_MAX):
        kinds_of(kinds, request_of(number), *blocks(1, uses=0, gap=-1.0, children=0))
    (late,) = kinds_of(kinds, request_of(2100), *blocks(1, uses=0, gap=-1.0, children=0))
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


def tell_many(policy: Worth, seed: int) -> None:
    """Requests of all sorts, some of whose blocks were used before."""
    generator, rows = np.random.default_rng(seed), np.arange(20)
    for number in range(300):
        length = int(generator.choice([1, 2, 3, 4, 6, 20]))
        chain = 20 * int(generator.integers(0, 40)) + rows[:length]
        use = Use(
            rows=chain,
            hashes=hashes_of(chain),
            found=0,
            prompt_tokens=int(10 ** generator.uniform(1, 7)),
            answer_tokens=int(10 ** generator.uniform(0, 4)),
            session_turn=number % 6,
        )
        policy.use(3.0 * number, [use])
        policy.touch(GPU, chain[::-1])


def test_when_all_kinds_are_taken_uses_are_told_as_before_and_nothing_grows() -> None:
    kinds_max = COARSE_MAX + 100
    policy = Worth(kinds_max)
    policy.begin(1_000)
    tell_many(policy, 1)
    kinds = policy.learning.kinds
    # All turns, uses, depths and distances that there are.
    for turn in range(6):
        for uses in (0, 1, 2, 3, 6, 20):
            for count in (1, 2, 3, 4, 5, 6, 7, 20, 40):
                kinds_of(kinds, (turn, 7, 7, 0, 4), *blocks(count, uses=uses, gap=-1.0, children=0))
    assert kinds.count == kinds_max
    coarse = kinds.levels[:, kinds_max - COARSE_MAX : kinds_max]
    assert (coarse[[1, 2, 3, 4, 8, 9]] == ANY).all()
    assert len({tuple(levels) for levels in coarse.T.tolist()}) == COARSE_MAX
    tell_many(policy, 2)
    assert kinds.count == kinds_max
    worth = policy.worth(policy.victims(GPU, 1_000, lambda rows: rows))
    assert worth.size > 500
    assert np.isfinite(worth).all()
    assert (worth > 0).all()


def test_where_only_uses_and_places_are_told_apart_it_is_learned_what_comes_back_by_these() -> None:
    """Prompts that are asked again and again, and others that are asked once."""
    policy = Worth(COARSE_MAX + 1)
    policy.begin(2_000)
    for number in range(1_000):
        kept = np.arange(5) + 5 * (number % 40)
        once = 1_000 + np.arange(5) + 5 * (number % 100)
        fresh = hashes_of(10_000 + 5 * number + np.arange(5))
        again = Use(rows=kept, hashes=hashes_of(kept), found=5, prompt_tokens=2_560)
        policy.use(10.0 * number, [again, Use(rows=once, hashes=fresh, found=0, prompt_tokens=2_560)])
    assert (policy.learning.kinds.levels[1, policy._kind[[*kept, *once]]] == ANY).all()
    assert policy.worth(kept).min() > 3 * policy.worth(once).max()
