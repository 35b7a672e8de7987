"""The order a restart tells of: parents first, least recent chains first, orphans apart."""

import random

import numpy as np
import pytest

from kvstore.core.types import BlockKey, WriterId
from kvstore.tiers import disk_order
from kvstore.tiers.disk_format import BlockEntry, block_name
from kvstore.tiers.disk_index import read_index
from kvstore.tiers.disk_order import keys_in_order


def key_of(number: int) -> BlockKey:
    # No key is all zeros: that stands for no parent.
    return BlockKey((number + 1).to_bytes(32))


def name(number: int, domain: int = 1) -> bytes:
    return (1).to_bytes(4) + domain.to_bytes(4) + key_of(number)


def entry(parent: int | None, created: int) -> BlockEntry:
    key = BlockKey(b"") if parent is None else key_of(parent)
    return BlockEntry(
        segment=0, slot=0, size=1, parent=key, checksum=bytes(16), writer=WriterId(1), created_ns=created
    )


def order_chains(entries: dict[bytes, BlockEntry]) -> tuple[list[bytes], list[bytes]]:
    """By name: the blocks in order, and the orphans."""
    found, bad = read_index(iter(entries), (each.pack(block) for block, each in entries.items()))
    assert not bad
    keys, orphans = keys_in_order(found, found.created_ns)
    for key in keys:
        assert key.parent == entries[block_name(key)].parent
    return [block_name(key) for key in keys], orphans


def test_the_chain_with_the_newest_block_comes_last():
    entries = {
        name(1): entry(None, 1),
        name(2): entry(1, 9),
        name(3): entry(None, 5),
        name(4): entry(3, 6),
    }
    assert order_chains(entries) == ([name(3), name(4), name(1), name(2)], [])


def test_a_parent_stored_again_after_its_child_still_comes_first():
    entries = {name(2): entry(1, 3), name(1): entry(None, 8)}
    assert order_chains(entries)[0] == [name(1), name(2)]


def test_orphans_and_their_descendants_and_cycles_are_apart():
    entries = {
        name(1): entry(None, 1),
        name(3): entry(2, 1),
        name(4): entry(3, 1),
        name(5): entry(6, 1),
        name(6): entry(5, 1),
        name(7): entry(7, 1),
    }
    order, orphans = order_chains(entries)
    assert order == [name(1)]
    assert set(orphans) == {name(n) for n in (3, 4, 5, 6, 7)}


def test_a_parent_of_another_domain_is_none():
    entries = {name(1, domain=1): entry(None, 1), name(2, domain=2): entry(1, 2)}
    assert order_chains(entries) == ([name(1, domain=1)], [name(2, domain=2)])


@pytest.mark.parametrize("seed", range(20))
def test_random_forests(seed):
    draw = random.Random(seed)
    parents = {n: draw.choice([None, *range(n)]) for n in range(200)}
    numbers = list(parents)
    draw.shuffle(numbers)
    entries = {name(n): entry(parents[n], draw.randrange(50)) for n in numbers}
    order, orphans = order_chains(entries)
    assert not orphans
    assert sorted(order) == sorted(entries)
    place = {block: i for i, block in enumerate(order)}
    assert all(place[name(p)] < place[name(n)] for n, p in parents.items() if p is not None)


def test_names_that_look_alike_when_mixed_are_told_apart(monkeypatch):
    entries = {name(n): entry(n - 1 if n else None, n) for n in range(20)}
    entries |= {name(n, domain=2): entry(n - 1, n) for n in range(5, 8)}
    expected = order_chains(entries)
    monkeypatch.setattr(disk_order, "MIX", np.uint64(0))
    assert order_chains(entries) == expected
    assert expected == ([name(n) for n in range(20)], [name(n, domain=2) for n in range(5, 8)])
