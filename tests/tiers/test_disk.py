"""The disk tier: whole batches or nothing, right bytes or none, and what is found after a restart."""

import gc
import mmap
import os
import stat
import threading
from collections import Counter
from contextlib import closing
from pathlib import Path

import lmdb
import numpy as np
import pytest
from msgspec.structs import replace

from kvstore.core.errors import CheckFailed, ConfigInvalid, DiskInvalid, LayoutMismatch
from kvstore.core.types import BlockKey
from kvstore.tiers import disk_folder
from kvstore.tiers.disk import DiskTier, DiskWriteFailed, ReadOutcome
from kvstore.tiers.disk_format import MAGIC, TABLES, BlockEntry, block_name
from kvstore.tiers.disk_table import BlockTable
from kvstore.tiers.files import DirectFiles
from kvstore.tiers.names import NameKind
from kvstore.tiers.pool import frame_stride_bytes
from tests.tiers.helpers import (
    BLOCK,
    CAP,
    add_namespace,
    chain,
    change_bytes,
    change_raw,
    frames,
    open_tier,
    payload,
    read,
    stored,
    write,
)


@pytest.fixture
def disk(tmp_path: Path):
    tier = open_tier(tmp_path)
    yield tier
    tier.close()


def reopen(disk: DiskTier, cap: int = CAP) -> DiskTier:
    disk.close()
    return open_tier(disk.folder, cap)


SLOT = 12_288


def flip(value: bytes) -> bytes:
    return value[:-1] + bytes([value[-1] ^ 1])


# ------------------------------------------------------------------- reading and writing


@pytest.mark.parametrize("size", [1, 15, 4_095, 4_096, 4_097, 10_001, 368_640, 5 << 20])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("padded", [False, True])
def test_what_is_read_is_what_was_written(tmp_path, size, ranks, padded):
    """Both as parts that lie anywhere, and as rows of a pool, which go as they lie."""
    stride = frame_stride_bytes(size)
    with closing(open_tier(tmp_path, CAP, size, ranks)) as tier:
        keys = chain(3)
        blocks = [[os.urandom(size) for _ in range(ranks)] for _ in keys]
        outs = [[frame_of(b"", stride if padded else size) for _ in range(ranks)] for _ in keys]
        payloads = [
            [frame_of(part, stride).data if padded else memoryview(part) for part in block]
            for block in blocks
        ]
        tier.write(keys, payloads)
        assert tier.read(keys, outs) == [ReadOutcome.GOOD] * 3
        assert [[part[:size].tobytes() for part in out] for out in outs] == blocks


def frame_of(data: bytes, stride: int) -> np.ndarray:
    """A row as pools have them, with junk behind the block."""
    row = np.frombuffer(mmap.mmap(-1, frame_stride_bytes(stride)), np.uint8)[:stride]
    row[:] = 0xA5
    row[: len(data)] = np.frombuffer(data, np.uint8)
    return row


def test_neighbours_go_as_one_and_in_any_order(tmp_path):
    calls: list[tuple[str, int]] = []

    class Counted(DirectFiles):
        def write(self, fd, parts, offset):
            calls.append(("write", sum(part.nbytes for part in parts)))
            super().write(fd, parts, offset)

        def read(self, fd, parts, offset):
            calls.append(("read", sum(part.nbytes for part in parts)))
            super().read(fd, parts, offset)

    size, keys = 1 << 20, chain(10)
    with closing(open_tier(tmp_path, CAP, size, files=Counted())) as tier:
        data = write(tier, keys, size)
        assert calls == [("write", 2 << 20)] * 5
        calls.clear()
        outs = [frames(size) for _ in keys]
        order = [3, 1, 0, 2, 9, 7]
        paced: list[int] = []
        assert tier.read([keys[n] for n in order], outs[:6], pace=paced.append) == [ReadOutcome.GOOD] * 6
        assert [out[0].tobytes() for out in outs[:6]] == [data[n] for n in order]
        assert sorted(calls) == [("read", 1 << 20), ("read", 1 << 20), ("read", 4 << 20)]
        assert sorted(paced) == [1 << 20, 1 << 20, 4 << 20]


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
    second = write(disk, [stored(1)])[0]
    assert disk.held_blocks == 1
    assert read(disk, stored(1)) == second
    payloads = [payload() for _ in range(3)]
    disk.write([stored(1), stored(2), stored(1)], payloads)
    assert read(disk, stored(1)) == bytes(payloads[2][0]), "the last of two in one batch"
    assert disk.held_blocks == 2


def test_deleted_is_gone_and_unknown_ones_are_passed_over(disk):
    write(disk, chain(3))
    disk.delete([stored(0), stored(99), stored(2)])
    assert [read(disk, key) is not None for key in chain(3)] == [False, True, False]
    disk.delete(chain(3))
    assert disk.held_blocks == 0


@pytest.mark.parametrize("call", ["write", "sync", "create"])
def test_a_batch_that_fails_half_way_leaves_nothing(tmp_path, call):
    class Fails(DirectFiles):
        count = 0

        def __getattribute__(self, name):
            if name == call:
                Fails.count += 1
                if Fails.count == {"write": 2, "sync": 1, "create": 2}[call]:
                    raise OSError("No space left on device")
            return super().__getattribute__(name)

    size = 3 << 20
    with closing(open_tier(tmp_path, CAP, size, files=Fails())) as tier:
        free = tier.capacity_blocks(size, 1)
        with pytest.raises(DiskWriteFailed, match="No space left"):
            write(tier, chain(3), size)
        assert tier.degraded
        assert [read(tier, key, size) for key in chain(3)] == [None] * 3
        assert tier.held_blocks == 0
        tier.delete([])  # Lets it be tried again at once.
        for n in range(free):
            write(tier, [stored(n)], size)
    with closing(open_tier(tmp_path, CAP, size)) as again:
        assert len(again.found(size)) == free, "no slot is lost"


def test_a_transaction_that_fails_leaves_nothing_and_its_slots_come_back(disk, monkeypatch):
    def fails(rows, geometry, blocks):
        raise lmdb.DiskError("No space left on device")

    write(disk, [stored(50)])
    free = disk._layout.storage.space.free_count
    monkeypatch.setattr(disk._table, "put", fails)
    with pytest.raises(DiskWriteFailed, match="No space left"):
        write(disk, chain(3))
    monkeypatch.undo()
    assert disk.degraded
    assert [read(disk, key) for key in chain(3)] == [None] * 3
    assert disk._layout.storage.space.free_count == free - 3, "it may be durable all the same"
    disk.delete([])
    disk.delete([stored(99)])
    assert disk._layout.storage.space.free_count == free
    with closing(reopen(disk)) as again:
        assert again.found(BLOCK) == [stored(50)]


# ------------------------------------------------------------------------------- damage


@pytest.mark.parametrize(
    ("change", "bad"),
    [
        (flip, 0),
        (lambda value: bytes([value[0] ^ 1]) + value[1:], 1),
        (lambda value: bytes(len(value)), 1),
        (lambda value: value[: BLOCK - 1] + b"?" + value[BLOCK:], 1),
    ],
)
def test_a_damaged_block_is_a_miss_and_can_be_stored_again(disk, caplog, change, bad):
    data = write(disk, chain(3))
    disk.close()
    change_bytes(disk.folder, stored(1, 0), SLOT, change)
    with closing(open_tier(disk.folder)) as tier:
        outs = [frames() for _ in range(3)]
        good = [ReadOutcome.GOOD, ReadOutcome.BAD if bad else ReadOutcome.GOOD, ReadOutcome.GOOD]
        assert tier.read(chain(3), outs) == good
        assert tier.counts.bad_entries == bad, "of what pads a block nothing is said"
        assert [outs[n][0].tobytes() for n in (0, 2)] == [data[0], data[2]]
        if bad:
            assert block_name(stored(1, 0)).hex() in caplog.text
            assert tier.held_blocks == 2
            assert tier.read(chain(3), outs) == good
            assert tier.counts.bad_entries == 1
            again = write(tier, [stored(1, 0)])[0]
            assert read(tier, stored(1, 0)) == again


def test_a_record_that_cannot_be_read_is_dropped_at_the_start(disk):
    write(disk, chain(3))
    disk.close()
    change_raw(disk.folder, "blocks", block_name(stored(2)), lambda value: b"\xff" + value[1:])
    with closing(open_tier(disk.folder)) as tier:
        assert tier.counts.bad_entries == 1
        assert tier.found(BLOCK) == chain(2)


def test_bytes_under_a_wrong_name_are_found_out(disk):
    write(disk, chain(1))
    name = block_name(stored(0))
    disk.close()
    with lmdb.open(str(disk.folder), max_dbs=len(TABLES), map_size=CAP) as env:
        blocks = env.open_db(b"blocks")
        with env.begin(write=True) as txn:
            entry = BlockEntry.unpack(name, txn.pop(name, db=blocks) or b"")
            other = block_name(stored(0, tenant=2))
            txn.put(other, entry.pack(other), db=blocks)
    with closing(open_tier(disk.folder)) as tier:
        assert len(tier.found(BLOCK)) == 1
        assert read(tier, stored(0, tenant=2)) is None
        assert tier.counts.bad_entries == 1


def test_of_two_in_one_slot_the_younger_is_kept(disk):
    data = write(disk, chain(2))
    names = [block_name(key) for key in chain(2)]
    disk.close()
    with lmdb.open(str(disk.folder), max_dbs=len(TABLES), map_size=CAP) as env:
        blocks = env.open_db(b"blocks")
        with env.begin(write=True) as txn:
            entries = [BlockEntry.unpack(name, txn.get(name, b"", db=blocks)) for name in names]
            txn.put(names[0], replace(entries[0], slot=entries[1].slot).pack(names[0]), db=blocks)
    with closing(open_tier(disk.folder)) as tier:
        assert tier.counts.bad_entries == 1
        assert read(tier, stored(0)) is None
        assert read(tier, stored(1, 0)) == data[1]
        assert tier.held_blocks == 1
        write(tier, chain(2))
        assert tier.held_blocks == 2


def test_a_block_of_another_size_is_a_miss_and_stays(disk):
    data = write(disk, chain(1))
    with closing(reopen(disk)) as again:
        again.lay_out(BLOCK - 1, 1)
        assert read(again, stored(0), size=BLOCK - 1) is None
        again.lay_out(BLOCK, 1)
        assert read(again, stored(0)) == data[0]


def test_frames_and_parts_of_a_wrong_size_are_a_bug(disk):
    with pytest.raises(CheckFailed):
        read(disk, stored(0), size=BLOCK - 1)
    with pytest.raises(CheckFailed):
        read(disk, stored(0), ranks=2)
    with pytest.raises(CheckFailed):
        write(disk, chain(1), BLOCK + 1)


# ------------------------------------------------------------------------------ restart


def test_a_restart_finds_all_blocks_parents_first(disk):
    write(disk, chain(5))
    write(disk, chain(3, first=10))
    write(disk, [stored(5, 4), stored(20, 1)])
    with closing(reopen(disk)) as again:
        found = again.found(BLOCK)
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
    with closing(reopen(disk)) as again:
        assert again.held_blocks == 4
        assert again.found(BLOCK) == chain(2)
        assert again.counts.orphans == 2
        assert again.held_blocks == 2
        assert read(again, stored(4)) is None


def test_blocks_of_other_sizes_are_left_alone_and_counted(disk):
    whole = disk.capacity_blocks(BLOCK, 1)
    write(disk, chain(3))
    with closing(reopen(disk)) as again:
        other = add_namespace(again.names, BLOCK + 1, 1, b"other")
        again.lay_out(BLOCK + 1, 1)
        assert again.capacity_blocks(BLOCK + 1, 1) == whole - 3
        assert again.found(BLOCK + 1) == []
        write(again, [stored(n, namespace=other) for n in range(20)], BLOCK + 1)
    with closing(open_tier(disk.folder)) as tier:
        assert tier.capacity_blocks(BLOCK, 1) == whole - 20
        assert tier.found(BLOCK) == chain(3)
        assert len(tier.found(BLOCK + 1)) == 20


# ------------------------------------------------------------------- other layouts, other formats


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


# ------------------------------------------------------------------------------- folder


def test_folder_and_files_are_private(tmp_path):
    folder = tmp_path / "made" / "here"
    with closing(open_tier(folder)) as tier:
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
    with pytest.raises(DiskInvalid, match=found):
        DiskTier.open(tmp_path, CAP, wipe_incompatible=True)
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
        (b"format", (1).to_bytes(4), "format 1, where this build reads and writes format 3"),
        (b"format", (4).to_bytes(4), "format 4"),
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
    with closing(open_tier(tmp_path)) as tier:
        write(tier, chain(2))
        with pytest.raises(DiskInvalid):
            DiskTier.open(tmp_path, CAP)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "strange").write_text("")
    with pytest.raises(DiskInvalid):
        DiskTier.open(tmp_path / "sub", CAP)
    assert len(os.listdir("/proc/self/fd")) == before


def test_no_descriptor_or_thread_is_left_where_sessions_cannot_be_read(disk, monkeypatch):
    def fails(self):
        raise lmdb.CorruptedError("no")

    write(disk, chain(2))
    disk.close()
    monkeypatch.setattr(BlockTable, "read_sessions", fails)
    gc.collect()
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    with pytest.raises(DiskInvalid, match="damaged"):
        DiskTier.open(disk.folder, CAP)
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before


def test_case_5_20_a_remote_file_system_is_warned_of(tmp_path, monkeypatch, caplog):
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
        disk.read([replace(stored(1), key=BlockKey(b"short"))], [frames()])


def test_without_a_layout_nothing_is_written_or_read(tmp_path):
    with closing(DiskTier.open(tmp_path, CAP)) as tier:
        for call in (lambda: write(tier, chain(1)), lambda: read(tier, stored(0)), lambda: tier.found(BLOCK)):
            with pytest.raises(CheckFailed, match="no layout"):
                call()
