"""What a policy remembers has a bound: after many uses it holds no more than after fewer."""

import gc
import sys
from types import FrameType, FunctionType, ModuleType

import numpy as np
import pytest

from bench.replay import hashes_of
from kvstore.core.ports import EvictionPolicy, Use
from kvstore.core.types import GPU, StepNumber, StepTiming
from kvstore.policy.choices import EVICTION_POLICIES, SWAP_POLICIES, make_eviction, make_swap

CAPACITY, CHAIN = 256, 8
# What comes and goes, and kinds that are still new: less than a reference for each use.
USES, SLACK_BYTES = 3_000, 16 << 10


def held_bytes(root: object) -> int:
    """By all that can be reached from it, classes and code aside."""
    found, total, left = {id(root)}, 0, [root]
    while left:
        each = left.pop()
        total += sys.getsizeof(each)
        base = [each.base] if isinstance(each, np.ndarray) else []
        for other in base + gc.get_referents(each):
            aside = isinstance(other, type | ModuleType | FunctionType | FrameType)
            if not aside and id(other) not in found:
                found.add(id(other))
                left.append(other)
    return total


class Cache:
    """As the store has it: of one tier, in which room is made for each chain. Most are used once, some again,
    and some are told to be over."""

    def __init__(self, policy: EvictionPolicy) -> None:
        self.policy = policy
        policy.begin(CAPACITY + CHAIN)
        self._free = list(range(CAPACITY + CHAIN))
        self._random = np.random.default_rng(1)
        self._chains: dict[int, np.ndarray] = {}
        self._key = 0

    def use(self, count: int) -> None:
        for _ in range(count):
            self._use_one()

    def _use_one(self) -> None:
        policy, random = self.policy, self._random
        again = [key for key in (self._key - int(random.integers(1, 40)),) if key in self._chains]
        key = again[0] if again and random.random() < 0.4 else self._next_key()
        if key in self._chains:
            rows = self._chains[key]
            policy.forget(GPU, rows)
        else:
            self._make_room()
            rows = self._chains[key] = np.array([self._free.pop() for _ in range(CHAIN)])
        use = Use(
            time=float(self._key),
            rows=rows,
            hashes=hashes_of(CHAIN * key + np.arange(CHAIN)),
            found=CHAIN if again else 0,
            prompt_tokens=int(random.integers(1, 100_000)),
            answer_tokens=int(random.integers(0, 4_000)),
        )
        policy.use(use)
        policy.touch(GPU, rows[::-1])
        if random.random() < 0.1:
            policy.retire(rows[::-1])

    def _next_key(self) -> int:
        self._key += 1
        return self._key

    def _make_room(self) -> None:
        while len(self._free) < CHAIN:
            victims = self.policy.victims(GPU, CHAIN, lambda rows: rows)
            gone = {int(row) for row in victims}
            # A chain that loses a block is used no more: what is left of it goes, too.
            for key in [key for key, rows in self._chains.items() if gone & set(rows.tolist())]:
                rows = self._chains.pop(key)
                self.policy.evicted(GPU, rows[::-1])
                self.policy.forget(GPU, rows[::-1])
                self._free += rows.tolist()


@pytest.mark.parametrize("name", EVICTION_POLICIES)
def test_an_order_of_eviction_remembers_no_more_after_many_uses(name: str) -> None:
    cache = Cache(make_eviction(name, (CAPACITY, 0, 0)))
    cache.use(USES)
    before = held_bytes(cache.policy)
    cache.use(USES)
    assert held_bytes(cache.policy) <= before + SLACK_BYTES


@pytest.mark.parametrize("name", SWAP_POLICIES)
def test_what_is_known_of_costs_is_no_more_after_many_steps(name: str) -> None:
    policy, random = make_swap(name), np.random.default_rng(2)
    sizes = []
    for step in range(2_000):
        timing = StepTiming(
            step=StepNumber(step),
            prefill_tokens=int(random.integers(1, 8_000)),
            prefill_context=int(random.integers(0, 1 << 30)),
            elapsed_seconds=float(random.uniform(0.01, 1.0)),
        )
        policy.note_timings((timing,), float(step))
        sizes.append(held_bytes(policy) if step in (999, 1_999) else 0)
    assert sizes[1_999] <= sizes[999] + (1 << 10)
