"""What may leave a tier, in an order in which chains are not whole."""

import numpy as np
import pytest

from kvstore.core.blocks import NO_ROW
from kvstore.core.tree import with_ancestors
from kvstore.core.types import CPU, GPU, Tier
from tests.core.caller import Caller
from tests.core.world import World, make_store, text

FRAMES = 64


def tree(seed: int) -> World:
    """Prompts that share prefixes of all lengths; some of them have a copy below, and some are still held."""
    random = np.random.default_rng(seed)
    world = World(make_store(gpu_frames=FRAMES, cpu_frames=FRAMES // 2))
    caller = Caller(world)
    trunk = text(seed, 24)
    for number in range(8):
        shared = 4 * int(random.integers(0, 6))
        caller.cache((*trunk[:shared], *text(100 + number, 12)), number)
        if random.random() < 0.5:
            world.drain()
    world.drain()
    caller.begin(50, (*trunk[:8], *text(200, 8)))
    return world


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("tier", [GPU, CPU])
def test_the_first_few_are_the_first_of_all(seed: int, tier: Tier) -> None:
    world = tree(seed)
    memory = world.store.memory
    random = np.random.default_rng(seed)
    owned = memory.pools[tier].owned()
    stopped = 0
    for _ in range(20):
        rows = random.permutation(owned)[: random.integers(1, owned.size + 1)]
        everything = memory.room.going.removable(tier, rows)
        for count in range(1, everything.size + 1):
            few = memory.room.going.removable(tier, rows, count)
            assert few[:count].tolist() == everything[:count].tolist()
            stopped += few.size < everything.size
    assert stopped


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("tier", [GPU, CPU])
def test_a_look_at_the_head_tells_the_first_of_all_or_nothing(seed: int, tier: Tier) -> None:
    """Also where what others hang on stands before the first leaf, as in an order of last uses."""
    memory = tree(seed).store.memory
    going, random = memory.room.going, np.random.default_rng(seed)
    owned = memory.pools[tier].owned()
    by_use = memory.eviction.victims(tier, owned.size, lambda rows: rows)
    told = behind = 0
    for number in range(200):
        rows = random.permutation(owned)
        if number % 2 and by_use.size > 1:
            # As used, but that one which others may hang on was used first.
            place = int(random.integers(1, by_use.size))
            rows = np.concatenate([by_use[place : place + 1], np.delete(by_use, place)])
        everything = going.removable(tier, rows)
        for count in range(1, everything.size // 2 + 1):
            few = going.first_few(tier, rows, rows[: 2 * count + 8], count)
            if few.size:
                assert few.tolist() == everything[:count].tolist()
                told += 1
                behind += few[0] != rows[0]
    assert told
    assert behind


@pytest.mark.parametrize("seed", range(8))
def test_ancestors_are_found_once_each(seed: int) -> None:
    blocks = tree(seed).store.memory.blocks
    random = np.random.default_rng(seed)
    indexed = np.flatnonzero(blocks.indexed)
    rows = random.permutation(indexed)[: random.integers(1, indexed.size)]
    expected = set()
    for row in rows.tolist():
        while row != NO_ROW:
            expected.add(row)
            row = int(blocks.parent[row])
    found = with_ancestors(blocks, rows)
    assert sorted(found.tolist()) == sorted(expected)
