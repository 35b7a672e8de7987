"""The order a restart tells of: parents first, least recent chains first, orphans apart."""

import random

import pytest

from kvstore.core.types import BlockKey, WriterId
from kvstore.tiers.disk_format import BlockEntry
from kvstore.tiers.disk_order import order_chains


def name(number: int, domain: int = 0) -> bytes:
    return domain.to_bytes(8) + number.to_bytes(32)


def entry(parent: int | None, created: int) -> BlockEntry:
    key = BlockKey(b"" if parent is None else parent.to_bytes(32))
    return BlockEntry(size=1, parent=key, checksum=bytes(16), writer=WriterId(1), created_ns=created)


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
