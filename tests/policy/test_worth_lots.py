"""What is told together of many chains comes to the same, bit for bit, as if they were told one by one."""

from collections.abc import Callable

import numpy as np
import pytest

from bench.replay import hashes_of
from kvstore.core.ports import KeyHashes, Use
from kvstore.core.types import GPU
from kvstore.policy import lots
from kvstore.policy.kinds import COARSE_MAX, KINDS_MAX
from kvstore.policy.worth import Worth

CAPACITY = 5_000
Hashes = Callable[[np.ndarray], KeyHashes]


def crowded(keys: np.ndarray) -> KeyHashes:
    """All in a hundred places of the table: what takes whose place depends on who comes first."""
    high = np.uint64(0xFFFF_FF00_0000_0000)
    return hashes_of(keys) & high | hashes_of(keys) % np.uint64(100)


class Requests:
    """Chains that go on from one another, and from none."""

    def __init__(self, seed: int, hashes: Hashes) -> None:
        self._random = np.random.default_rng(seed)
        self._hashes = hashes
        self._known = [np.arange(3)]
        self._next = 3

    def draw(self, count: int) -> list[Use]:
        return [self._one() for _ in range(count)]

    def _one(self) -> Use:
        random = self._random
        chain = np.empty(0, np.intp)
        if random.random() < 0.7:
            chain = self._known[-1 - int(random.integers(min(30, len(self._known))))]
            chain = chain[: int(random.integers(1, chain.size + 1))]
        fresh = np.arange(self._next, self._next + int(random.integers(not chain.size, 20)))
        self._next += fresh.size
        chain = np.concatenate([chain, fresh])
        self._known = [*self._known[-100:], chain]
        return Use(
            rows=chain % CAPACITY,
            hashes=self._hashes(chain),
            found=0,
            prompt_tokens=int(random.integers(1, 100_000)),
            answer_tokens=int(random.integers(0, 3_000)),
            session_turn=int(random.integers(0, 4)) if random.random() < 0.2 else 0,
        )


def state(policy: Worth) -> list[bytes]:
    """All that it knows."""
    learning, chains = policy.learning, policy.chains
    returns, runs = learning.returns, learning.returns._runs
    tables: list[np.ndarray] = [
        learning.ghosts._words,
        policy._kind,
        policy._time,
        policy._is_shared,
        chains.use,
        chains._parent,
        chains._is_needed,
        learning.kinds.levels,
        *(returns._read, returns._reached, returns._ended, returns._seen, returns._unread),
        *(returns._worth, returns._chance, returns.hazard),
        *(runs._time, runs._kind, runs._size, np.array([runs.count, *runs._passed])),
    ]
    return [table.tobytes() for table in tables]


@pytest.mark.parametrize("hashes", [hashes_of, crowded])
@pytest.mark.parametrize("kinds_max", [KINDS_MAX, COARSE_MAX + 40])
def test_many_at_once_come_to_the_same_as_one_after_the_other(
    kinds_max: int, hashes: Hashes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lots, "BLOCKS_MAX", 400)
    requests, random = Requests(kinds_max, hashes), np.random.default_rng(kinds_max)
    together, one_by_one = Worth(kinds_max), Worth(kinds_max)
    for policy in (together, one_by_one):
        policy.begin(CAPACITY)
    time = 0.0
    for _ in range(60):
        time += float(10 ** random.uniform(-2, 2)) if random.random() < 0.9 else 0.0
        uses = requests.draw(int(random.choice([1, 2, 10, 60])))
        together.use(time, uses)
        for use in uses:
            one_by_one.use(time, [use])
        for policy in (together, one_by_one):
            policy.touch(GPU, uses[-1].rows[::-1])
    assert state(together) == state(one_by_one)


def test_a_block_that_hundreds_share_is_counted_as_far_as_one_by_one() -> None:
    """Past all that is counted; and the time between its uses is halved until nothing is left of it."""
    together, one_by_one, head = Worth(), Worth(), np.arange(3)
    chains = [head, *(np.append(head, [10 + 2 * number, 11 + 2 * number]) for number in range(400))]
    first, *uses = (Use(rows=chain, hashes=hashes_of(chain), found=0) for chain in chains)
    for policy in (together, one_by_one):
        policy.begin(CAPACITY)
        policy.use(0.0, [first])
    together.use(5.0, uses)
    for use in uses:
        one_by_one.use(5.0, [use])
    assert state(together) == state(one_by_one)
    _, records, _ = together.learning.ghosts.find(hashes_of(head))
    assert records["counts"].tolist() == [[255, 1, 1], [255, 1, 1], [255, 255, 1]]
    assert records["gap"].tolist() == [0.0] * 3


def test_nothing_that_is_used_is_no_use() -> None:
    policy, nothing = Worth(), np.empty(0, np.intp)
    policy.begin(10)
    before = state(policy)
    policy.use(9.0, [])
    policy.use(9.0, [Use(rows=nothing, hashes=hashes_of(nothing), found=0)])
    assert state(policy) == before
    assert policy.watched_seconds == 0.0
