"""Full disks, I/O errors, cut-off files and killed writers: writing stops, reading and the process go on."""

import contextlib
import errno
import random
from contextlib import closing
from pathlib import Path

import lmdb
import pytest

from kvstore.core.types import StoredKey
from kvstore.tiers import disk_reading
from kvstore.tiers.disk import DiskWriteFailed, ReadOutcome
from kvstore.tiers.files import DirectFiles
from tests.tiers.helpers import (
    CAP,
    chain,
    files_at_most,
    frames,
    open_tier,
    read,
    stored,
    taken_bytes,
    write,
)

SMALL = 4 << 20
SIZE = 100_000


@pytest.fixture
def disk(tmp_path: Path, clock):
    tier = open_tier(tmp_path, SMALL, SIZE, clock=clock)
    yield tier
    tier.close()


# --------------------------------------------------------------------------------- full


def test_the_capacity_fits_and_the_cap_holds_at_every_moment(disk):
    capacity = disk.capacity_blocks(SIZE, 1)
    keys = chain(capacity)
    for start in range(0, capacity, 8):
        write(disk, keys[start : start + 8], SIZE)
        assert taken_bytes(disk.folder) <= SMALL
    for turn in range(40):  # A full tier that lives on: blocks go, others come.
        first = capacity + 4 * turn
        disk.delete([stored(n) for n in range(first - capacity, first - capacity + 4)])
        write(disk, [stored(n) for n in range(first, first + 4)], SIZE)
        assert taken_bytes(disk.folder) <= SMALL
    assert not disk.degraded
    with pytest.raises(DiskWriteFailed, match="full"):
        write(disk, [stored(10_000), stored(10_001)], SIZE)


@pytest.mark.parametrize("size", [1, 5_000, 30_000])
def test_the_capacity_fits_for_small_blocks_too(tmp_path, size):
    """Many times the cap, of keys in no order: the index stays in its share."""
    draw = random.Random(size)
    with closing(open_tier(tmp_path, SMALL, size)) as tier:
        capacity = tier.capacity_blocks(size, 1)
        assert capacity * size < SMALL
        held: list[StoredKey] = []
        for first in range(0, 5 * capacity, 50):
            keys = [stored(n) for n in range(first, first + 50)]
            if len(held) > capacity - 50:
                draw.shuffle(held)
                tier.delete(held[:50])
                del held[:50]
            write(tier, keys, size)
            held += keys
        assert taken_bytes(tmp_path) <= SMALL
        assert tier.counts.delete_errors == tier.counts.write_errors == 0
        tier.delete(held)
        assert tier.held_blocks == 0


def test_a_full_index_degrades_and_heals(disk, clock):
    """A reader that stays keeps all freed pages from being used again (a stuck tool, say)."""
    data = dict(zip(chain(5), write(disk, chain(5), SIZE), strict=True))
    with disk._table._env.begin():
        for turn in range(2_000):
            disk.delete([stored(100 + turn - 1)])
            with contextlib.suppress(DiskWriteFailed):
                write(disk, [stored(100 + turn)], SIZE)
            if disk.degraded:
                break
        assert "MapFull" in disk.degraded_reason
        assert all(read(disk, key, SIZE) == block for key, block in data.items())
        with pytest.raises(DiskWriteFailed, match="not tried again yet"):
            write(disk, [stored(9_000)], SIZE)
        assert taken_bytes(disk.folder) <= SMALL
    clock.now += 1.0
    for _ in range(3):  # The pages come free in two transactions.
        with contextlib.suppress(DiskWriteFailed):
            write(disk, [stored(9_000)], SIZE)
        clock.now += 10.0
    assert not disk.degraded
    assert read(disk, stored(9_000), SIZE) is not None


def test_a_full_disk_degrades_and_heals_with_ever_longer_pauses(disk, clock):
    data = write(disk, chain(3), SIZE)
    with files_at_most(SIZE + SIZE // 2):
        for wait in (1.0, 2.0, 4.0):
            with pytest.raises(DiskWriteFailed, match="File too large"):
                write(disk, chain(20, first=50), SIZE)
            clock.now += wait * 0.99
            with pytest.raises(DiskWriteFailed, match="not tried again yet"):
                write(disk, [stored(60)], SIZE)
            clock.now += wait * 0.02
        assert disk.counts.write_errors == 3
        assert [read(disk, key, SIZE) for key in chain(3)] == data
        disk.delete([stored(2, 1)])
        assert read(disk, stored(2, 1), SIZE) is None
    write(disk, chain(5, first=50), SIZE)
    assert not disk.degraded
    assert disk.degraded_reason == ""


def test_a_delete_that_fails_is_made_up_for(disk, clock, monkeypatch):
    write(disk, chain(3), SIZE)

    def fails(names):
        raise lmdb.DiskError("I/O error")

    monkeypatch.setattr(disk._table, "remove", fails)
    disk.delete([stored(1)])
    disk.delete([stored(2)])
    assert disk.degraded
    assert disk.counts.delete_errors == 2
    assert disk.held_blocks == 3
    monkeypatch.undo()
    clock.now += 100.0
    write(disk, [stored(2)], SIZE)
    assert [read(disk, stored(n), SIZE) is not None for n in range(3)] == [True, False, True]
    disk.delete([])
    assert read(disk, stored(2), SIZE) is not None, "written since: nothing is owed"


def test_case_5_07_a_bad_block_that_cannot_be_deleted_blocks_nothing(disk, clock, monkeypatch):

    write(disk, chain(3), SIZE)
    monkeypatch.setattr(disk_reading, "checksum_of", lambda name, parts: b"wrong")
    monkeypatch.setattr(
        disk._table, "remove_if", lambda records: (_ for _ in ()).throw(lmdb.DiskError("EPERM"))
    )
    assert read(disk, stored(0), SIZE) is None
    assert read(disk, stored(0), SIZE) is None
    assert disk.counts.delete_errors == 2
    monkeypatch.undo()
    capacity = disk.capacity_blocks(SIZE, 1)
    disk.delete([stored(1), stored(2)])
    write(disk, [stored(100 + n) for n in range(capacity)], SIZE)
    assert read(disk, stored(0), SIZE) is None, "it was owed"


def test_an_error_of_the_index_is_a_miss_and_the_block_stays(disk, monkeypatch):
    def broken(names):
        raise lmdb.CorruptedError("located page was wrong type")

    data = write(disk, chain(1), SIZE)
    monkeypatch.setattr(disk._table, "find", broken)
    assert read(disk, stored(0), SIZE) is None
    assert disk.counts.read_errors == 1
    monkeypatch.undo()
    assert read(disk, stored(0), SIZE) == data[0]


class OneBadSlot(DirectFiles):
    """A sector that can't be read."""

    offset = -1

    def read(self, fd, parts, offset):
        if offset <= self.offset < offset + sum(part.nbytes for part in parts):
            raise OSError(errno.EIO, "Input/output error")
        super().read(fd, parts, offset)


def test_a_sector_that_cannot_be_read_takes_no_neighbours_with_it(tmp_path):
    files = OneBadSlot()
    with closing(open_tier(tmp_path, CAP, SIZE, files=files)) as tier:
        keys = chain(10)
        data = write(tier, keys, SIZE)
        files.offset = 3 * 102_400 + 5
        outs = [frames(SIZE) for _ in keys]
        outcomes = tier.read(keys, outs)
        assert [n for n, outcome in enumerate(outcomes) if outcome is not ReadOutcome.GOOD] == [3]
        assert [out[0].tobytes() for n, out in enumerate(outs) if n != 3] == data[:3] + data[4:]
        assert tier.counts.read_errors == 1
        files.offset = -1
        assert read(tier, keys[3], SIZE) == data[3]
