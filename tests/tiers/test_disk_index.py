"""Entries read by the thousand are the same ones, good and bad, as read one by one."""

import random

import pytest

from kvstore.core.types import BlockKey, WriterId
from kvstore.tiers import disk_format
from kvstore.tiers.disk_format import BlockEntry
from kvstore.tiers.disk_index import PIECE, FoundBlocks, read_index
from kvstore.tiers.names import ID_MAX

COUNT = 2 * PIECE + 100


def entries(count: int, seed: int = 1) -> dict[bytes, bytes]:
    """Names and records in the order of names; every fourth key and parent ends with zeros."""
    draw = random.Random(seed)
    rows = {}
    for number in range(count):
        key = draw.randbytes(20) + (bytes(12) if number % 4 == 0 else draw.randbytes(12))
        name = b"".join(draw.choice([1, 256, ID_MAX]).to_bytes(4) for _ in range(2)) + key
        parent = draw.choice([b"", draw.randbytes(32), draw.randbytes(31) + b"\0"])
        rows[name] = BlockEntry(
            segment=draw.randrange(2**32),
            slot=draw.randrange(2**32),
            size=draw.randrange(1, 2**40),
            parent=BlockKey(parent),
            checksum=draw.randbytes(16),
            writer=WriterId(draw.randrange(1, ID_MAX)),
            created_ns=draw.randrange(2**63),
        ).pack(name)
    return dict(sorted(rows.items()))


def read(rows: dict[bytes, bytes]) -> tuple[FoundBlocks, list[bytes]]:
    return read_index(iter(rows), iter(rows.values()))


def check_equal(found: FoundBlocks, rows: dict[bytes, bytes]) -> None:
    assert found.names() == list(rows)
    expected = [BlockEntry.unpack(name, record) for name, record in rows.items()]
    assert found.segment.tolist() == [entry.segment for entry in expected]
    assert found.slot.tolist() == [entry.slot for entry in expected]
    assert found.size.tolist() == [entry.size for entry in expected]
    assert found.writer.tolist() == [entry.writer for entry in expected]
    assert found.created_ns.tolist() == [entry.created_ns for entry in expected]
    assert [bytes(parent) for parent in found.parent] == [entry.parent or bytes(32) for entry in expected]


def test_columns_hold_what_was_packed():
    rows = entries(COUNT)
    found, bad = read(rows)
    check_equal(found, rows)
    assert not bad


def test_an_empty_index_is_one_too():
    found, bad = read({})
    check_equal(found, {})
    assert not bad


@pytest.mark.parametrize("place", [0, PIECE - 1, PIECE, COUNT - 1])
@pytest.mark.parametrize("damage", ["bit", "cut", "longer", "empty"])
def test_a_bad_entry_is_found_and_its_neighbours_are_kept(place, damage):
    rows = entries(COUNT)
    name = list(rows)[place]
    record = rows[name]
    rows[name] = {
        "bit": record[:20] + bytes([record[20] ^ 1]) + record[21:],
        "cut": record[:-1],
        "longer": record + b"\0",
        "empty": b"",
    }[damage]
    found, bad = read(rows)
    assert bad == [name]
    del rows[name]
    check_equal(found, rows)


def plain(writer: int = 1) -> BlockEntry:
    return BlockEntry(
        segment=0,
        slot=0,
        size=1,
        parent=BlockKey(b""),
        checksum=bytes(16),
        writer=WriterId(writer),
        created_ns=1,
    )


@pytest.mark.parametrize(
    ("namespace", "tenant", "writer"),
    [(0, 1, 1), (ID_MAX + 1, 1, 1), (1, 0, 1), (1, ID_MAX + 1, 1), (1, 1, 0), (1, 1, ID_MAX + 1)],
)
def test_ids_out_of_bounds_are_bad_though_the_checksum_is_right(namespace, tenant, writer):
    name = namespace.to_bytes(4) + tenant.to_bytes(4) + b"k" * 32
    found, bad = read({name: plain(writer).pack(name)})
    assert (len(found), bad) == (0, [name])


def test_another_version_is_bad_though_the_checksum_is_right(monkeypatch):
    name = bytes([0, 0, 0, 1]) * 10
    with monkeypatch.context() as patch:
        patch.setattr(disk_format, "ENTRY_VERSION", 2)
        record = plain().pack(name)
    found, bad = read({name: record})
    assert (len(found), bad) == (0, [name])


def test_a_byte_that_moved_from_the_name_to_the_record_is_not_overlooked():
    name = bytes([0, 0, 0, 1]) * 10
    record = plain().pack(name)
    found, bad = read({name[:-1]: name[-1:] + record})
    assert (len(found), bad) == (0, [name[:-1]])


def test_what_a_damaged_tree_gives_twice_counts_once():
    rows = entries(PIECE)
    names, records = list(rows), list(rows.values())
    for again in (slice(5), slice(PIECE - 5, PIECE)):
        found, bad = read_index(iter(names + names[again]), iter(records + records[again]))
        assert not bad
        check_equal(found, rows)
