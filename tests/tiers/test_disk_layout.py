"""Folders laid out for blocks of another size, or by another format: refused, or wiped where that may be."""

import os
from collections import Counter
from contextlib import closing
from pathlib import Path

import lmdb
import pytest

from kvstore.core.errors import DiskInvalid, LayoutMismatch
from kvstore.tiers.disk import DiskTier
from kvstore.tiers.disk_format import MAGIC
from kvstore.tiers.disk_table import BlockTable
from kvstore.tiers.names import NameKind
from tests.tiers.helpers import (
    BLOCK,
    CAP,
    add_namespace,
    chain,
    open_tier,
    payload,
    read,
    reopen,
    stored,
    write,
)

SLOT = 12_288


def test_a_layout_of_another_size_is_refused_and_nothing_changes(disk):
    data = write(disk, chain(2))
    with closing(reopen(disk)) as again:
        for refused in (again.capacity_blocks, again.lay_out):
            with pytest.raises(LayoutMismatch, match="--wipe-incompatible") as refusal:
                refused(50_000, 2)
            assert refusal.value.value == "2 x 50000"
        with pytest.raises(LayoutMismatch):
            again.lay_out(SLOT // 3, 3)
        assert [read(again, key) for key in chain(2)] == data


def test_a_layout_of_another_size_may_be_wiped(disk):
    write(disk, chain(2))
    disk.close()
    with closing(DiskTier.open(disk.folder, CAP, wipe_incompatible=True)) as tier:
        assert tier.held_blocks == 2, "not before the layout is there"
        assert tier.capacity_blocks(50_000, 2) > 0
        assert tier.held_blocks == 2
        tier.lay_out(50_000, 2)
        namespace = add_namespace(tier.names, 50_000, 2, b"other")
        assert namespace == 2, "the names of what was there are not given to others"
        assert tier.found(50_000 * 2) == []
        keys = [stored(n, namespace=namespace) for n in range(3)]
        payloads = [payload(50_000, 2) for _ in keys]
        tier.write(keys, payloads)
    with closing(DiskTier.open(disk.folder, CAP)) as tier:
        tier.lay_out(50_000, 2)
        assert Counter(tier.found(100_000)) == Counter(keys)
        assert read(tier, keys[1], 50_000, 2) == b"".join(payloads[1])


def test_a_wipe_takes_the_names_along_that_had_other_sizes(disk):
    """So that the same fingerprint may come with the sizes for which the operator has wiped."""
    write(disk, chain(2))
    disk.close()
    with closing(DiskTier.open(disk.folder, CAP, wipe_incompatible=True)) as tier:
        assert not tier.would_wipe(BLOCK, 1)
        assert tier.would_wipe(50_000, 2)
        with pytest.raises(LayoutMismatch):
            tier.names.check_namespace(b"f" * 32, 50_000, 16, 2)
        tier.lay_out(50_000, 2)
        tier.names.check_namespace(b"f" * 32, 50_000, 16, 2)
        namespace = add_namespace(tier.names, 50_000, 2)
        assert namespace == 2, "ids are not given to others while this lives"
        tier.write([stored(1, namespace=namespace)], [payload(50_000, 2)])
    with closing(DiskTier.open(disk.folder, CAP)) as tier:
        assert not tier.would_wipe(BLOCK, 1), "only who was told to wipe does"
        tier.lay_out(50_000, 2)
        assert add_namespace(tier.names, 50_000, 2) == namespace
        assert tier.names.name_of(NameKind.TENANT, 1) == b"default"
        assert len(tier.found(100_000)) == 1


def test_a_wipe_that_fails_leaves_all_as_it_was(disk, monkeypatch):
    def fails(table):
        raise lmdb.DiskError("I/O error")

    data = write(disk, chain(2))
    disk.close()
    with closing(DiskTier.open(disk.folder, CAP, wipe_incompatible=True)) as tier:
        with monkeypatch.context() as patched:
            patched.setattr(BlockTable, "clear", fails)
            with pytest.raises(lmdb.DiskError):
                tier.lay_out(50_000, 2)
        tier.lay_out(BLOCK, 1)
        assert [read(tier, key) for key in chain(2)] == data
        write(tier, [stored(7)])
    with closing(reopen(disk)) as tier:
        assert [read(tier, key) for key in chain(2)] == data
        assert tier.held_blocks == 3


def test_the_flag_leaves_a_folder_alone_that_fits(disk):
    data = write(disk, chain(2))
    disk.close()
    with closing(open_tier(disk.folder, wipe_incompatible=True)) as tier:
        assert [read(tier, key) for key in chain(2)] == data


def make_format_2(folder: Path) -> None:
    with lmdb.open(str(folder), max_dbs=6, map_size=CAP) as env:
        for table, key, value in (
            (b"meta", b"magic", MAGIC),
            (b"meta", b"format", (2).to_bytes(4)),
            (b"blocks", b"x" * 40, b"an entry"),
            (b"bytes", b"x" * 40, bytes(100_000)),
        ):
            with env.begin(write=True) as txn:
                txn.put(key, value, db=env.open_db(table, txn))
    (folder / "kvstore.lock").write_text("1 on here")


def test_an_older_format_is_refused_and_may_be_wiped(tmp_path):
    make_format_2(tmp_path)
    with pytest.raises(DiskInvalid, match="format 2, where this build reads and writes format 3") as refusal:
        DiskTier.open(tmp_path, CAP)
    assert "--wipe-incompatible" in refusal.value.remedy
    with closing(open_tier(tmp_path, wipe_incompatible=True)) as tier:
        assert tier.found(BLOCK) == []
        data = write(tier, chain(2))
    with closing(open_tier(tmp_path)) as tier:
        assert [read(tier, key) for key in chain(2)] == data


def test_segments_without_their_index_are_refused_and_may_be_wiped(disk):
    write(disk, chain(2))
    disk.close()
    (disk.folder / "data.mdb").unlink()
    with pytest.raises(DiskInvalid, match=r"index data\.mdb is missing") as refusal:
        DiskTier.open(disk.folder, CAP)
    assert "--wipe-incompatible" in refusal.value.remedy
    with closing(open_tier(disk.folder, wipe_incompatible=True)) as tier:
        assert tier.found(BLOCK) == []
        write(tier, chain(2))


@pytest.mark.parametrize("size", [0, 1, 4096, 8192])
def test_segments_with_an_empty_index_are_refused_and_may_be_wiped(disk, size):
    write(disk, chain(3))
    disk.close()
    os.truncate(disk.folder / "data.mdb", size)
    before = sorted(disk.folder.glob("segment-*"))
    with pytest.raises(DiskInvalid, match=r"data\.mdb is empty.*--wipe-incompatible"):
        DiskTier.open(disk.folder, CAP)
    assert before
    assert sorted(disk.folder.glob("segment-*")) == before
    with closing(open_tier(disk.folder, wipe_incompatible=True)) as again:
        assert again.found(BLOCK) == []
        assert sorted(disk.folder.glob("segment-*")) == []


def test_names_are_kept_with_the_first_blocks_that_follow_them(disk):
    tenant, writer = disk.names.tenant_id("a"), disk.names.writer_id("engine", "build")
    write(disk, chain(1))
    disk.names.tenant_id("never used")
    with closing(reopen(disk)) as again:
        assert again.names.tenant_id("b") == tenant + 1
        assert again.names.tenant_id("a") == tenant
        assert again.names.writer_id("engine", "build") == writer
        assert add_namespace(again.names) == 1
