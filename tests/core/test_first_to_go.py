"""Who goes first is found out by a look at a few of the oldest, and it is who would go by a look at all."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from kvstore.core.blocks import NO_ROW, Blocks
from kvstore.core.config import StoreConfig
from kvstore.core.pool import FramePool
from kvstore.core.room import Room
from kvstore.core.shares import Shares
from kvstore.core.types import CPU, DISK, GPU, Rows, Tier
from kvstore.policy.eviction import Lru

SIZE = 600


class Forest:
    """Random chains that branch, in random tiers, some in use, some wanted on disk. Used in random order,
    mostly chain by chain; or each deeper block before each that is less deep, and then none is in use."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        config = StoreConfig(block_tokens=16, gpu_frames=SIZE, cpu_frames=SIZE, disk_frames=SIZE)
        self.blocks = blocks = Blocks(3 * SIZE)
        self.pools = tuple(FramePool(SIZE) for _ in Tier)
        self.lru = Lru()
        self.lru.begin(blocks.capacity)
        self.room = Room(blocks, self.pools, self.lru, Shares(config, blocks))
        self.rows = rows = blocks.take_rows(SIZE)
        by_depth = seed % 3 == 0
        below = float(random.choice([0.004, 0.3, 0.7]))
        blocks.indexed[rows] = True
        blocks.valid[GPU][rows] = True
        blocks.frame[GPU][rows] = self.pools[GPU].take(rows)
        for place, row in enumerate(rows.tolist()):
            if place and random.random() < 0.9:
                back = 1 if random.random() < 0.8 else int(random.integers(1, place + 1))
                parent = int(rows[place - back])
                blocks.parent[row], blocks.depth[row] = parent, blocks.depth[parent] + 1
                blocks.children[parent] += 1
                blocks.children_in[GPU][parent] += 1
        for tier in (CPU, DISK):
            there = rows[random.random(SIZE) < below]
            blocks.valid[tier][there] = True
            blocks.frame[tier][there] = self.pools[tier].take(there)
            parents = blocks.parent[there]
            np.add.at(blocks.children_in[tier], parents[parents != NO_ROW], 1)
        # Whoever leaves the GPU leaves blocks behind that hang on others there.
        share_gone = 0.0 if by_depth else 0.1 if below > 0.1 else 1.0
        gone = rows[(random.random(SIZE) < share_gone) & blocks.kept_below(rows)]
        blocks.valid[GPU][gone] = False
        self.pools[GPU].give(blocks.frame[GPU][gone].astype(np.intp))
        blocks.frame[GPU][gone] = NO_ROW
        parents = blocks.parent[gone]
        np.subtract.at(blocks.children_in[GPU], parents[parents != NO_ROW], 1)
        share_used = 0.0 if by_depth else random.choice([0.0, 0.02])
        blocks.refs[rows[random.random(SIZE) < share_used]] = 1
        blocks.refs[gone] = 0
        blocks.to_disk[rows[random.random(SIZE) < random.choice([0.0, 0.3])]] = True
        cached = rows[blocks.valid[GPU][rows] & (blocks.refs[rows] == 0)]
        if by_depth:
            self.lru.touch(GPU, cached[np.argsort(-blocks.depth[cached], kind="stable")])
            return
        self.lru.touch(GPU, cached[::-1])
        for _ in range(20):
            again = random.choice(cached, size=int(random.integers(1, 30)), replace=False)
            self.lru.touch(GPU, again)


@pytest.fixture(params=range(60))
def forest(request: pytest.FixtureRequest) -> Forest:
    return Forest(request.param)


def all_of(room: Room, spared: Callable[[Rows], NDArray[np.bool_]] | None, rows: Rows) -> Rows:
    return room.going.removable(GPU, rows if spared is None else rows[~spared(rows)])


def test_a_look_at_a_few_tells_what_a_look_at_all_would(forest: Forest) -> None:
    room, lru = forest.room, forest.lru
    for count in (1, 2, 3, 7, 20, 60, 200):
        for spared in (None, room.uncopied):
            expected = lru.victims(GPU, count, partial(all_of, room, spared))
            assert room.victims(GPU, count, spared=spared).tolist() == expected.tolist()


@pytest.mark.parametrize("tier", [GPU, CPU])
def test_stuck_is_what_could_go_but_for_what_hangs_on_it_elsewhere(forest: Forest, tier: Tier) -> None:
    """By the definition, one block after the other."""
    blocks, rows = forest.blocks, set(forest.pools[tier].owned().tolist())
    busy = {row for row in forest.rows.tolist() if blocks.refs[row]}
    children: dict[int, set[int]] = {row: set() for row in forest.rows.tolist()}
    for row in children:
        if (parent := int(blocks.parent[row])) != NO_ROW:
            children[parent].add(row)
    ends = {row for row in rows - busy if sum(valid[row] for valid in blocks.valid) == 1}
    left = set(ends)
    while going := {row for row in left if not children[row] & (left | (children.keys() - ends))}:
        left -= going
    needed = set()
    for row in busy:
        while row != NO_ROW and row not in needed:
            needed.add(row)
            row = int(blocks.parent[row])
    assert set(forest.room.stuck(tier).tolist()) == left - needed
