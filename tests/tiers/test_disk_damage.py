"""Flipped bits in what the tier writes about blocks and names, and disks that can't hold it at all."""

import logging
import os
import shutil
from contextlib import closing
from pathlib import Path

import lmdb
import pytest

from kvstore.core.errors import DiskInvalid
from kvstore.core.types import WriterId
from kvstore.tiers.disk import DiskTier, DiskWriteFailed
from kvstore.tiers.disk_environment import LOCK_FILE, LOCK_FILE_BYTES
from kvstore.tiers.disk_format import BlockEntry, block_name, pack_name_row, unpack_name_row
from kvstore.tiers.names import ID_MAX, NameKind, NameRow
from tests.tiers.helpers import (
    BLOCK,
    CAP,
    add_namespace,
    chain,
    change_raw,
    files_at_most,
    open_tier,
    read,
    stored,
    write,
)

FINGERPRINT = b"f" * 32
WRITER = b"engine\0build"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five blocks in a chain, of a namespace, a tenant and a writer that have names."""
    with closing(open_tier(tmp_path)) as tier:
        tier.names.tenant_id("default")
        tier.names.writer_id("engine", "build")
        write(tier, chain(5))
    return tmp_path


def flipped(value: bytes, bit: int) -> bytes:
    changed = bytearray(value)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


# ------------------------------------------------------------------------------- names


@pytest.mark.parametrize(("table", "name"), [("namespaces", FINGERPRINT), ("tenants", b"default")])
@pytest.mark.parametrize("change", [lambda v: b"\0\0\0\3" + v[4:], lambda v: v[:3], lambda v: flipped(v, 70)])
def test_a_damaged_namespace_or_tenant_is_refused(folder, table, name, change):
    change_raw(folder, table, name, change)
    with pytest.raises(DiskInvalid, match=f"damaged: .* of {table}") as refusal:
        DiskTier.open(folder, CAP)
    assert refusal.value.value == str(folder)
    assert "kvstore verify --repair" in refusal.value.remedy


def test_any_bit_of_a_name_row_counts():
    row = NameRow(kind=NameKind.NAMESPACE, id=3, name=FINGERPRINT, value=b'{"ranks": 1}')
    record = pack_name_row(row)
    assert unpack_name_row(row.kind, row.name, record) == row
    for bit in range(8 * len(record)):
        with pytest.raises(ValueError, match="checksum"):
            unpack_name_row(row.kind, row.name, flipped(record, bit))
    for kind, name in ((NameKind.NAMESPACE, b"g" * 32), (NameKind.TENANT, row.name)):
        with pytest.raises(ValueError, match="checksum"):
            unpack_name_row(kind, name, record)


def test_a_damaged_writer_is_passed_over_and_its_id_not_given_out_again(folder, caplog):
    change_raw(folder, "writers", WRITER, lambda value: flipped(value, 0))
    with closing(open_tier(folder)) as tier:
        assert "of writers; it is passed over" in caplog.text
        assert tier.found(BLOCK) == chain(5)
        assert tier.names.writer_id("engine", "build") == 2
        write(tier, [stored(9)])
    caplog.clear()
    with closing(open_tier(folder)) as tier:
        assert "writers" not in caplog.text
        assert tier.names.writer_id("engine", "build") == 2


def test_blocks_whose_namespace_or_tenant_is_lost_come_to_nobody_else(folder):
    change_raw(folder, "namespaces", FINGERPRINT, lambda _: None)
    change_raw(folder, "tenants", b"default", lambda _: None)
    with closing(DiskTier.open(folder, CAP)) as tier:
        assert add_namespace(tier.names, fingerprint=b"other") == 2
        tier.lay_out(BLOCK, 1)
        assert tier.names.tenant_id("other") == 2
        assert tier.found(BLOCK) == []


@pytest.mark.parametrize("id_", [0, ID_MAX + 1])
def test_ids_out_of_bounds_are_refused(id_):
    row = NameRow(kind=NameKind.TENANT, id=id_, name=b"a")
    with pytest.raises(ValueError, match="an id of"):
        unpack_name_row(row.kind, row.name, pack_name_row(row))
    for key, writer in ((stored(1, tenant=id_), 1), (stored(1, namespace=id_), 1), (stored(1), id_)):
        entry = BlockEntry(
            segment=0,
            slot=0,
            size=1,
            parent=key.parent,
            checksum=bytes(16),
            writer=WriterId(writer),
            created_ns=1,
        )
        with pytest.raises(ValueError, match="an id of"):
            BlockEntry.unpack(block_name(key), entry.pack(block_name(key)))


# ------------------------------------------------------------------------------ entries


def test_any_bit_of_an_entry_counts():
    name = block_name(stored(1))
    entry = BlockEntry(
        segment=1,
        slot=2,
        size=BLOCK,
        parent=stored(2).key,
        checksum=b"c" * 16,
        writer=WriterId(3),
        created_ns=1,
    )
    record = entry.pack(name)
    assert BlockEntry.unpack(name, record) == entry
    for bit in range(8 * len(record)):
        with pytest.raises(ValueError, match="entry"):
            BlockEntry.unpack(name, flipped(record, bit))
    with pytest.raises(ValueError, match="entry"):
        BlockEntry.unpack(block_name(stored(1, tenant=2)), record)


# Segment, slot, size, parent, checksum, writer (its sign, as the breaker had it) and time.
@pytest.mark.parametrize("byte", [2, 7, 16, 28, 58, 65, 76, 83])
def test_a_damaged_entry_is_dropped_at_the_start_and_its_children_too(folder, byte):
    change_raw(folder, "blocks", block_name(stored(2)), lambda value: flipped(value, 8 * byte + 7))
    with closing(open_tier(folder)) as tier:
        assert tier.counts.bad_entries == 1
        assert tier.found(BLOCK) == chain(2)
        assert tier.counts.orphans == 2
        assert tier.counts.bad_entries == 1
        write(tier, [stored(2, 1)])
        assert read(tier, stored(2, 1)) is not None


def test_an_entry_under_a_name_of_another_length_is_dropped(folder):
    change_raw(folder, "blocks", b"ab", lambda _: b"x" * 93)
    with closing(open_tier(folder)) as tier:
        assert tier.found(BLOCK) == chain(5)
        assert tier.counts.bad_entries == 1


def test_a_tree_that_cannot_be_read_leaves_an_empty_tier_that_stays_degraded(folder, monkeypatch, caplog):
    def broken():
        raise lmdb.CorruptedError("located page was wrong type")

    now = 0.0
    with closing(open_tier(folder, clock=lambda: now)) as tier:
        # What was read at the start is told once.
        assert len(tier.found(BLOCK)) == 5
        monkeypatch.setattr(tier._table, "read_index", broken)
        assert tier.found(BLOCK) == []
        assert tier.counts.read_errors == 1
        assert [record.levelno for record in caplog.records if str(folder) in record.message][
            -1
        ] == logging.ERROR
        monkeypatch.undo()
        now = 1e9
        tier.delete([stored(4)])
        with pytest.raises(DiskWriteFailed, match=r"damaged, .*verify --repair.*: CorruptedError"):
            write(tier, [stored(9)])
        assert tier.degraded


# -------------------------------------------------------------------- full, or too large


def test_the_lock_file_has_its_pages_before_lmdb_maps_it(folder):
    lock = (folder / LOCK_FILE).stat()
    assert lock.st_size == LOCK_FILE_BYTES, "what LMDB itself would have made of it"
    assert lock.st_blocks * 512 >= LOCK_FILE_BYTES


def test_a_lock_file_full_of_holes_does_not_fill_the_disk(folder):
    """No longer than a few blocks of the disk here, so that the test does no harm where it fails."""
    os.truncate(folder / LOCK_FILE, 1 << 22)
    with pytest.raises(DiskInvalid, match=f"{LOCK_FILE} is {1 << 22} bytes long .*delete"):
        DiskTier.open(folder, CAP)
    assert (folder / LOCK_FILE).stat().st_blocks * 512 < 1 << 16
    (folder / LOCK_FILE).unlink()
    with closing(DiskTier.open(folder, CAP)):
        pass


def test_a_new_folder_on_a_full_disk_is_refused(tmp_path):
    with files_at_most(512), pytest.raises(DiskInvalid, match=f"{LOCK_FILE_BYTES} bytes for .*{LOCK_FILE}"):
        DiskTier.open(tmp_path, CAP)
    with closing(DiskTier.open(tmp_path, CAP)):
        pass


def test_a_cap_beyond_the_disk_is_as_good_as_all_of_the_disk(tmp_path):
    total = shutil.disk_usage(tmp_path).total
    with closing(open_tier(tmp_path, 1 << 70)) as tier:
        assert tier.capacity_blocks(BLOCK, 1) <= total // 12_288
        write(tier, chain(1))
        assert read(tier, stored(0)) is not None
