"""The disk tier: whole batches or nothing, right bytes or none, and what is found after a restart."""

import gc
import os
import stat
from collections import Counter
from contextlib import closing
from pathlib import Path

import lmdb
import pytest
from msgspec.structs import replace

from kvstore.core.errors import CheckFailed, ConfigInvalid, DiskInvalid
from kvstore.core.types import BlockKey
from kvstore.tiers import disk_folder
from kvstore.tiers.disk import DiskTier, DiskWriteFailed
from kvstore.tiers.disk_format import TABLES, block_name
from tests.tiers.helpers import (
    BLOCK,
    CAP,
    add_namespace,
    chain,
    change_raw,
    frames,
    payload,
    read,
    stored,
    write,
)


@pytest.fixture
def disk(tmp_path: Path):
    tier = DiskTier.open(tmp_path, CAP)
    add_namespace(tier.names)
    yield tier
    tier.close()


def reopen(disk: DiskTier, cap: int = CAP) -> DiskTier:
    disk.close()
    return DiskTier.open(disk.folder, cap)


def flip(value: bytes) -> bytes:
    return value[:-1] + bytes([value[-1] ^ 1])


# ------------------------------------------------------------------- reading and writing


@pytest.mark.parametrize("size", [1, 15, 2_000, 4_080, 4_081, 10_001, 368_640])
@pytest.mark.parametrize("ranks", [1, 2])
def test_what_is_read_is_what_was_written(disk, size, ranks):
    keys = chain(3)
    payloads = [payload(size, ranks) for _ in keys]
    disk.write(keys, payloads)
    for key, parts in zip(keys, payloads, strict=True):
        assert read(disk, key, size, ranks) == b"".join(parts)


def test_what_was_never_written_is_a_miss(disk):
    assert read(disk, stored(1)) is None


def test_nothing_is_found_across_tenants_or_namespaces(disk):
    write(disk, [stored(1)])
    assert read(disk, stored(1, tenant=2)) is None
    assert read(disk, stored(1, namespace=2)) is None
    other = write(disk, [stored(1, tenant=2)])[0]
    disk.delete([stored(1)])
    assert read(disk, stored(1)) is None
    assert read(disk, stored(1, tenant=2)) == other


def test_written_again_is_held_once(disk):
    write(disk, [stored(1)])
    held = disk.held_bytes
    second = write(disk, [stored(1)])[0]
    assert disk.held_bytes == held
    assert read(disk, stored(1)) == second


def test_deleted_is_gone_and_unknown_ones_are_passed_over(disk):
    write(disk, chain(3))
    disk.delete([stored(0), stored(99), stored(2)])
    assert [read(disk, key) is not None for key in chain(3)] == [False, True, False]
    disk.delete(chain(3))
    assert disk.held_bytes == 0


def test_a_batch_that_fails_at_the_second_of_three_leaves_nothing(disk, monkeypatch):
    put = disk._table._tables["bytes"]
    calls: Counter[bool] = Counter()

    class FailsAtSecond:
        """Stands for the write transaction."""

        def __init__(self, txn):
            self.txn = txn

        def put(self, name, value, db):
            calls[db is put] += 1
            if calls[True] == 2:
                raise lmdb.DiskError("No space left on device")
            return self.txn.put(name, value, db=db)

        def __getattr__(self, name):
            return getattr(self.txn, name)

    transact = disk._table._transact
    monkeypatch.setattr(disk._table, "_transact", lambda work: transact(lambda txn: work(FailsAtSecond(txn))))
    with pytest.raises(DiskWriteFailed, match="No space left"):
        write(disk, chain(3))
    monkeypatch.undo()
    assert disk.degraded
    assert [read(disk, key) for key in chain(3)] == [None] * 3
    assert disk.held_bytes == 0
    with closing(reopen(disk)) as again:
        assert again.stored(BLOCK) == []


# ------------------------------------------------------------------------------- damage


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("bytes", flip),
        ("bytes", lambda value: value[:-1]),
        ("bytes", lambda value: b""),
        ("bytes", lambda value: None),
        ("blocks", lambda value: None),
    ],
)
def test_a_damaged_block_is_a_miss_and_can_be_stored_again(disk, table, change):
    data = write(disk, chain(3))
    disk.close()
    change_raw(disk.folder, table, block_name(stored(1, 0)), change)
    with closing(DiskTier.open(disk.folder, CAP)) as tier:
        assert read(tier, stored(1, 0)) is None
        assert tier.counts.bad_entries == 1
        assert read(tier, stored(1, 0)) is None
        assert [read(tier, stored(n)) for n in (0, 2)] == [data[0], data[2]]
        again = write(tier, [stored(1, 0)])[0]
        assert read(tier, stored(1, 0)) == again


def test_a_record_that_cannot_be_read_is_dropped_at_the_start(disk):
    write(disk, chain(3))
    disk.close()
    change_raw(disk.folder, "blocks", block_name(stored(2)), lambda value: b"\xff" + value[1:])
    with closing(DiskTier.open(disk.folder, CAP)) as tier:
        assert tier.counts.bad_entries == 1
        assert tier.stored(BLOCK) == chain(2)


def test_bytes_under_a_wrong_name_are_found_out(disk):
    write(disk, chain(1))
    disk.close()
    with lmdb.open(str(disk.folder), max_dbs=len(TABLES), map_size=CAP) as env:
        for table in (env.open_db(b"blocks"), env.open_db(b"bytes")):
            with env.begin(write=True) as txn:
                value = txn.get(block_name(stored(0)), db=table)
                assert value is not None
                txn.put(block_name(stored(0, tenant=2)), value, db=table)
    with closing(DiskTier.open(disk.folder, CAP)) as tier:
        assert read(tier, stored(0)) is not None
        assert read(tier, stored(0, tenant=2)) is None


def test_a_frame_of_another_size_is_a_miss(disk):
    write(disk, chain(1))
    assert read(disk, stored(0), size=BLOCK - 1) is None


# ------------------------------------------------------------------------------ restart


def test_a_restart_finds_all_blocks_parents_first(disk):
    write(disk, chain(5))
    write(disk, chain(3, first=10))
    write(disk, [stored(5, 4), stored(20, 1)])
    with closing(reopen(disk)) as again:
        found = again.stored(BLOCK)
        assert Counter(found) == Counter([*chain(6), *chain(3, first=10), stored(20, 1)])
        assert found[:3] == chain(3, first=10), "the older chain first"
        seen = {BlockKey(b"")}
        for block in found:
            assert block.parent in seen
            seen.add(block.key)
        assert again.counts.orphans == 0


def test_orphans_are_dropped(disk):
    write(disk, chain(5))
    disk.delete([stored(2)])
    held = disk.held_bytes
    with closing(reopen(disk)) as again:
        assert again.held_bytes == held
        assert again.stored(BLOCK) == chain(2)
        assert again.counts.orphans == 2
        assert again.held_bytes == held // 2
        assert read(again, stored(4)) is None


def test_other_layouts_are_left_alone_and_counted(disk):
    other = add_namespace(disk.names, 50_000, 2, b"other")
    keys = [stored(n, namespace=other) for n in range(20)]
    disk.write(keys, [payload(50_000, 2) for _ in keys])
    write(disk, chain(3))
    with closing(reopen(disk)) as again:
        assert again.stored(BLOCK) == chain(3)
        assert Counter(again.stored(100_000)) == Counter(keys)
        assert again.capacity_blocks(BLOCK) == (CAP * 7 // 8 - 20 * (102_400 + 512)) // (12_288 + 512)


def test_names_are_kept_with_the_first_blocks_that_follow_them(disk):
    tenant, writer = disk.names.tenant_id("a"), disk.names.writer_id("engine", "build")
    write(disk, chain(1))
    disk.names.tenant_id("never used")
    with closing(reopen(disk)) as again:
        assert again.names.tenant_id("b") == tenant + 1
        assert again.names.tenant_id("a") == tenant
        assert again.names.writer_id("engine", "build") == writer
        assert add_namespace(again.names) == 1


# ------------------------------------------------------------------------------- folder


def test_folder_and_files_are_private(tmp_path):
    folder = tmp_path / "made" / "here"
    with closing(DiskTier.open(folder, CAP)) as tier:
        write(tier, chain(1))
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        for file in folder.iterdir():
            assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0, file


def test_a_folder_open_to_others_is_closed(tmp_path):
    tmp_path.chmod(0o755)
    with closing(DiskTier.open(tmp_path, CAP)):
        assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


def test_a_folder_of_somebody_else_is_refused_and_left_as_it_was(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(DiskInvalid, match=r"thesis\.txt") as refusal:
        DiskTier.open(tmp_path, CAP)
    assert str(tmp_path) in str(refusal.value)
    assert os.listdir(tmp_path) == ["thesis.txt"]


def look(folder: Path) -> list[tuple[str, int, int, bytes]]:
    return [
        (
            path.name,
            path.stat().st_mode,
            path.stat().st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in (folder, *sorted(folder.iterdir()))
    ]


def make_foreign(folder: Path) -> None:
    with lmdb.open(str(folder)) as env, env.begin(write=True) as txn:
        txn.put(b"theirs", b"1")
    # Theirs to make, as in a copy of the data alone.
    (folder / "lock.mdb").unlink()


def make_cut_off(folder: Path) -> None:
    make_foreign(folder)
    os.truncate(folder / "data.mdb", 8192)


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (make_foreign, "another program"),
        (make_cut_off, "cut off"),
        (lambda folder: (folder / "data.mdb").write_bytes(b"x" * 8192), "not kvstore's"),
        (lambda folder: (folder / "data.mdb").write_bytes(b""), "not kvstore's"),
    ],
)
def test_data_of_another_program_is_refused_and_left_as_it_was(tmp_path, make, found):
    tmp_path.chmod(0o755)
    make(tmp_path)
    before = look(tmp_path)
    with pytest.raises(DiskInvalid, match=found) as refusal:
        DiskTier.open(tmp_path, CAP)
    assert refusal.value.field == "--disk"
    assert look(tmp_path) == before


def test_data_without_the_claim_file_is_known_as_ours(disk):
    write(disk, chain(1))
    disk.close()
    (disk.folder / "kvstore.lock").unlink()
    with closing(reopen(disk)) as again:
        assert read(again, stored(0)) is not None


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        (b"format", (1).to_bytes(4), "format 1, where this build reads and writes format 2"),
        (b"format", (3).to_bytes(4), "format 3"),
        (b"magic", b"x", "another program"),
    ],
)
def test_another_version_is_refused(disk, name, value, found):
    disk.close()
    change_raw(disk.folder, "meta", name, lambda _: value)
    with pytest.raises(DiskInvalid, match=found) as refusal:
        DiskTier.open(disk.folder, CAP)
    assert refusal.value.remedy


def test_a_file_that_is_no_environment_is_refused(tmp_path):
    (tmp_path / "data.mdb").write_bytes(b"x" * 8192)
    with pytest.raises(DiskInvalid, match=str(tmp_path)):
        DiskTier.open(tmp_path, CAP)
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskInvalid, match="a file, not a folder"):
        DiskTier.open(tmp_path / "file", CAP)


def test_a_second_open_is_refused_through_any_path(disk, tmp_path_factory):
    link = tmp_path_factory.mktemp("links") / "link"
    link.symlink_to(disk.folder)
    for path in (disk.folder, link):
        with pytest.raises(DiskInvalid, match=f"pid {os.getpid()}"):
            DiskTier.open(path, CAP)
    write(disk, chain(1))
    assert read(disk, stored(0)) is not None


def test_no_descriptor_is_left(tmp_path):
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    with closing(DiskTier.open(tmp_path, CAP)) as tier:
        write(tier, chain(2))
        with pytest.raises(DiskInvalid):
            DiskTier.open(tmp_path, CAP)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "strange").write_text("")
    with pytest.raises(DiskInvalid):
        DiskTier.open(tmp_path / "sub", CAP)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_remote_file_system_is_warned_of(tmp_path, monkeypatch, caplog):
    device = tmp_path.stat().st_dev
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"22 1 {os.major(device)}:{os.minor(device)} / / rw shared:1 - nfs4 server:/x rw\n")
    monkeypatch.setattr(disk_folder, "MOUNTS", mounts)
    with closing(DiskTier.open(tmp_path / "disk", CAP)):
        assert "nfs4" in caplog.text


def test_a_cap_too_small_is_refused(tmp_path):
    with pytest.raises(ConfigInvalid, match="disk cap"):
        DiskTier.open(tmp_path, 1000)


def test_keys_of_wrong_length_are_a_bug(disk):
    with pytest.raises(CheckFailed):
        disk.read(replace(stored(1), key=BlockKey(b"short")), frames())
