"""The disk tier: whole batches or nothing, right bytes or none, and what is found after a restart."""

import mmap
import os
from collections import Counter
from contextlib import closing

import lmdb
import numpy as np
import pytest
from msgspec.structs import replace

from kvstore.core.errors import CheckFailed
from kvstore.core.types import BlockKey
from kvstore.tiers.disk import DiskWriteFailed, ReadOutcome
from kvstore.tiers.disk_format import TABLES, BlockEntry, block_name
from kvstore.tiers.files import DirectFiles
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
    reopen,
    stored,
    write,
)

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
