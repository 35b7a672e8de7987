"""Each classic policy, driven through the port, keeps what its plain reference keeps."""

from collections.abc import Callable

import numpy as np
import pytest

from bench.policy_cases import chats, loops, scans, zipf_documents
from bench.replay import hashes_of
from bench.traces import Trace
from kvstore.core.ports import EvictionPolicy, Use
from kvstore.core.types import GPU
from kvstore.policy.arc import Arc
from kvstore.policy.eviction import Lru
from kvstore.policy.lfu import LfuAgeing
from kvstore.policy.s3fifo import S3Fifo
from tests.policy.references import SlowArc, SlowLfu, SlowLru, SlowS3Fifo

PAIRS = [
    pytest.param(lambda size: Lru(), SlowLru, id="lru"),
    pytest.param(lambda size: LfuAgeing(), SlowLfu, id="lfu"),
    pytest.param(lambda size: Arc([size]), SlowArc, id="arc"),
    pytest.param(lambda size: S3Fifo([size]), SlowS3Fifo, id="s3fifo"),
]


def random_trace(seed: int) -> list[np.ndarray]:
    """Sets of keys, some used by many."""
    generator = np.random.default_rng(seed)
    draws = (generator.zipf(1.3, int(generator.integers(1, 12))) for _ in range(400))
    return [np.unique(draw % 120)[::-1].astype(np.int64) for draw in draws]


def chains(trace: Trace, count: int) -> list[np.ndarray]:
    return [request.blocks for request in trace.requests[:count]]


class Cache:
    """A tier of one policy, by keys."""

    def __init__(self, policy: EvictionPolicy, capacity: int) -> None:
        self.policy, self.capacity = policy, capacity
        policy.begin(capacity + 200)
        self.row: dict[int, int] = {}
        self.free = list(range(capacity + 200))

    def serve(self, keys: np.ndarray, time: float) -> set[int]:
        held = np.array([self.row[key] for key in keys.tolist() if key in self.row], np.intp)
        self.policy.forget(GPU, held)
        for key in keys.tolist():
            if key not in self.row:
                self.row[key] = self.free.pop()
        rows = np.array([self.row[key] for key in keys.tolist()], np.intp)
        self.policy.use(Use(time=time, rows=rows, hashes=hashes_of(keys), found=0))
        self.policy.touch(GPU, rows[::-1])
        return self.make_room()

    def make_room(self) -> set[int]:
        short = len(self.row) - self.capacity
        if short <= 0:
            return set()
        victims = self.policy.victims(GPU, short, lambda rows: rows)
        # Asked again it answers the same: it changes no order.
        assert self.policy.victims(GPU, short, lambda rows: rows).tolist() == victims.tolist()
        self.policy.evicted(GPU, victims)
        self.policy.forget(GPU, victims)
        key_of = {row: key for key, row in self.row.items()}
        gone = {key_of[row] for row in victims.tolist()}
        for key in gone:
            self.free.append(self.row.pop(key))
        return gone


@pytest.mark.parametrize(("make", "slow"), PAIRS)
@pytest.mark.parametrize("capacity", [10, 60, 100])
@pytest.mark.parametrize(
    "requests",
    [
        *(pytest.param(random_trace(seed), id=f"random {seed}") for seed in range(3)),
        pytest.param(chains(scans(requests=150), 150), id="scans"),
        pytest.param(chains(loops(requests=150), 150), id="loops"),
        pytest.param(chains(zipf_documents(requests=150), 150), id="documents"),
        pytest.param(chains(chats(requests=300), 300), id="chats"),
    ],
)
def test_it_evicts_what_its_reference_evicts(
    make: Callable[[int], EvictionPolicy], slow: type, capacity: int, requests: list[np.ndarray]
) -> None:
    cache, reference = Cache(make(capacity), capacity), slow(capacity)
    for index, keys in enumerate(requests):
        for key in keys[::-1].tolist():
            reference.access(key)
        assert cache.serve(keys, float(index)) == reference.evict(), index


@pytest.mark.parametrize(("make", "slow"), PAIRS)
def test_what_is_favoured_goes_last_by_priority(make: Callable[[int], EvictionPolicy], slow: type) -> None:
    cache = Cache(make(10), 100)
    cache.serve(np.arange(10), 0.0)
    rows = np.array([cache.row[key] for key in (3, 7)], np.intp)
    cache.policy.favour(rows, np.array([2, 1], np.int32))
    order = cache.policy.victims(GPU, 10, lambda rows: rows).tolist()
    assert order[-2:] == [cache.row[7], cache.row[3]]
    assert sorted(order) == sorted(cache.row.values())


@pytest.mark.parametrize(("make", "slow"), PAIRS)
def test_what_may_not_go_is_passed_over(make: Callable[[int], EvictionPolicy], slow: type) -> None:
    cache = Cache(make(10), 100)
    cache.serve(np.arange(40), 0.0)
    fixed = [cache.row[key] for key in range(0, 40, 2)]
    victims = cache.policy.victims(GPU, 30, lambda rows: rows[~np.isin(rows, fixed)])
    assert sorted(victims.tolist()) == sorted(set(cache.row.values()) - set(fixed))
