"""What lies on disk at start is found again, and fits."""

import random

import numpy as np
import pytest

from kvstore.core.errors import CheckFailed
from kvstore.core.events import BlocksFound
from kvstore.core.types import BlockKey, NamespaceId, SequenceState, StoredKey, TenantId, WriterId
from tests.core.caller import Caller
from tests.core.ops import commit
from tests.core.shadow import Content
from tests.core.world import World, keys_of, make_store, stored_keys, text


def restarted(*texts: Content, disk_frames: int = 32) -> World:
    world = World(make_store(gpu_frames=16, cpu_frames=8, disk_frames=disk_frames))
    world.find(*texts)
    return world


def test_case_9_01_after_a_restart_the_disk_is_hit() -> None:
    world = restarted(text(1, 16))
    caller = Caller(world)
    assert caller.lookup(keys_of(text(1, 16))).blocks_by_tier == (0, 0, 4)
    result = caller.allocate(1, 17, keys_of(text(1, 16)))
    assert (result.state, result.tier_tokens) == (SequenceState.SWAPPING_IN, (0, 0, 16))
    world.drain()
    caller.read(caller.table(1), text(1, 16))


def test_a_restart_without_blocks_is_an_empty_store() -> None:
    assert restarted().free_frames() == (16, 8, 32)


def test_tenants_and_namespaces_stay_apart() -> None:
    """Row 8.08: isolation per tier and after a restart."""
    world = restarted()
    world.find(text(1, 16), tenant=2)
    world.find(text(2, 16), namespace=2)
    one, two = Caller(world, 1, namespace=1), Caller(world, 2, namespace=2)
    assert one.lookup(keys_of(text(1, 16)), tenant="b").blocks_cached == 4
    assert one.lookup(keys_of(text(1, 16)), tenant="a").blocks_cached == 0
    assert two.lookup(keys_of(text(1, 16)), tenant="b").blocks_cached == 0
    assert two.lookup(keys_of(text(2, 16))).blocks_cached == 4


def test_a_block_told_right_after_another_tenants_hangs_on_its_own() -> None:
    """Tenants have the same keys for the same text."""
    world = restarted()
    one, two = (stored_keys(text(1, 16), tenant=tenant) for tenant in (1, 2))
    blocks = (*two[:2], *one[:2], *two[2:], one[2])
    world.handle(BlocksFound(time=world.time, blocks=blocks))
    caller = Caller(world)
    assert caller.lookup(keys_of(text(1, 16)), tenant="a").blocks_cached == 3
    assert caller.lookup(keys_of(text(1, 16)), tenant="b").blocks_cached == 4


@pytest.mark.parametrize("blocks", [(0, 2), (1, 0), (0, 1, 0), (0, 0)])
def test_blocks_told_twice_or_before_their_parent_are_a_bug(blocks: tuple[int, ...]) -> None:
    world = restarted()
    keys = stored_keys(text(1, 16))
    with pytest.raises(CheckFailed, match=r"before its parent|without its parent|found twice"):
        world.handle(BlocksFound(time=world.time, blocks=tuple(keys[n] for n in blocks)))


@pytest.mark.parametrize("seed", range(20))
def test_blocks_told_in_any_order_that_names_parents_first_form_the_same_trees(seed: int) -> None:
    draw = random.Random(seed)
    blocks, depths = list[StoredKey](), dict[StoredKey, int]()
    for number in range(100):
        # Mostly the one told just before, so that there are runs.
        above = draw.choice([None, *blocks[-1:] * 4, draw.choice(blocks)]) if blocks else None
        block = StoredKey(
            namespace=NamespaceId(above.namespace if above else draw.choice([1, 2])),
            tenant=TenantId(above.tenant if above else draw.choice([1, 2])),
            key=BlockKey(number.to_bytes(32)),
            parent=above.key if above else BlockKey(b""),
            writer=WriterId(number),
        )
        blocks.append(block)
        depths[block] = depths[above] + 1 if above else 0
    world = restarted(disk_frames=100)
    world.handle(BlocksFound(time=world.time, blocks=tuple(blocks)))
    memory = world.store.memory
    entries = [row for _, row in memory.prefix.entries()]
    rows = dict(zip(memory.replicas.stored_keys(np.array(entries, np.intp)), entries, strict=True))
    assert {block: memory.blocks.depth[row] for block, row in rows.items()} == depths


def test_chains_that_share_a_head_are_one_tree() -> None:
    tokens = text(1, 16)
    branch = (*tokens[:8], *text(2, 8))
    world = restarted(tokens, branch)
    caller = Caller(world)
    assert caller.lookup(keys_of(branch)).blocks_cached == 4
    assert world.free_frames()[2] == 32 - 6


def test_beyond_capacity_the_recent_chains_are_kept_and_the_rest_deleted() -> None:
    chains = [text(number, 16) for number in (1, 2, 3)]
    world = restarted(*chains, disk_frames=8)
    caller = Caller(world)
    found = [caller.lookup(keys_of(text(number, 16))).blocks_cached for number in (1, 2, 3)]
    assert found == [0, 4, 4]
    assert len(world.shadow.disk) == 8


def test_beyond_capacity_a_head_is_kept_where_the_tail_has_no_room() -> None:
    world = restarted(text(1, 16), text(2, 16), disk_frames=6)
    caller = Caller(world)
    found = [caller.lookup(keys_of(text(number, 16))).blocks_cached for number in (1, 2)]
    assert found == [2, 4]


def test_a_chain_longer_than_the_tier_is_cut_to_its_head_without_looking_at_it_again_and_again() -> None:
    """Half of it fits: to climb up from each block of the other half would take minutes."""
    store = make_store(gpu_frames=16, cpu_frames=8, disk_frames=30_000)
    keys = stored_keys(text(1, 4 * 60_000))
    effects = store.handle(BlocksFound(time=1.0, blocks=tuple(keys)))
    assert [key for delete in effects.deletes for key in delete.keys] == keys[30_000:]
    assert len(list(store.memory.prefix.entries())) == 30_000


def test_after_a_restart_the_least_recent_chain_goes_first() -> None:
    world = restarted(text(1, 8), text(2, 8), disk_frames=4)
    caller = Caller(world)
    caller.cache(text(3, 8), session="s")
    world.drain()
    found = [caller.lookup(keys_of(text(number, 8))).blocks_cached for number in (1, 2, 3)]
    assert found == [0, 2, 2]


def test_blocks_are_found_before_any_engine_attaches() -> None:
    world = restarted()
    Caller(world)
    with pytest.raises(CheckFailed, match="after an engine had attached"):
        world.handle(BlocksFound(time=world.time, blocks=tuple(stored_keys(text(1, 16)))))


def test_who_wrote_a_block_is_kept_with_it() -> None:
    world = restarted(text(1, 8))
    caller = Caller(world)
    caller.allocate(1, 16, keys_of(text(1, 8)))
    world.drain()
    caller.step(commit(1, keys_of(text(1, 16))))
    blocks = world.store.memory.blocks
    writers = [int(blocks.writer[row]) for row in caller.sequence(1).rows]
    assert writers == [7, 7, 1, 1]
