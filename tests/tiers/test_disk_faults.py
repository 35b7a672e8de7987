"""Full disks, I/O errors, cut-off files and killed writers: writing stops, reading and the process go on."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import lmdb
import pytest

from kvstore.tiers import disk_table
from kvstore.tiers.disk import DiskTier, DiskWriteFailed
from tests.tiers.helpers import BLOCK, CAP, add_namespace, chain, files_at_most, read, stored, write

SMALL = 4 << 20
SIZE = 100_000


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def disk(tmp_path: Path, clock):
    tier = DiskTier.open(tmp_path, SMALL, clock=clock)
    add_namespace(tier.names, SIZE)
    yield tier
    tier.close()


def file_bytes(disk: DiskTier) -> int:
    return (disk.folder / "data.mdb").stat().st_size


# --------------------------------------------------------------------------------- full


def test_the_capacity_fits_and_the_file_stays_below_the_cap(disk):
    capacity = disk.capacity_blocks(SIZE)
    keys = chain(capacity)
    for start in range(0, capacity, 8):
        write(disk, keys[start : start + 8], SIZE)
    for turn in range(40):  # A full tier that lives on: blocks go, others come.
        first = capacity + 4 * turn
        disk.delete([stored(n) for n in range(first - capacity, first - capacity + 4)])
        write(disk, [stored(n) for n in range(first, first + 4)], SIZE)
    assert not disk.degraded
    assert file_bytes(disk) <= SMALL
    with pytest.raises(DiskWriteFailed, match="full"):
        write(disk, [stored(10_000), stored(10_001)], SIZE)


@pytest.mark.parametrize("size", [1, 1_000, 3_000, 5_000, 30_000])
def test_the_capacity_fits_for_small_blocks_too(tmp_path, size):
    with closing(DiskTier.open(tmp_path, SMALL)) as tier:
        add_namespace(tier.names, size)
        keys = [stored(n) for n in range(tier.capacity_blocks(size))]
        for start in range(0, len(keys), 200):
            write(tier, keys[start : start + 200], size)
        assert file_bytes(tier) <= SMALL
        for start in range(0, len(keys), 200):
            tier.delete(keys[start : start + 200])
        assert tier.held_bytes == tier.counts.delete_errors == 0


def test_what_was_there_before_counts_towards_a_smaller_cap(tmp_path):
    with closing(DiskTier.open(tmp_path, 4 * SMALL)) as tier:
        add_namespace(tier.names, SIZE)
        write(tier, chain(60), SIZE)
        held = tier.held_bytes
    with closing(DiskTier.open(tmp_path, SMALL)) as tier:
        assert tier.held_bytes == held > SMALL
        capacity = tier.capacity_blocks(SIZE)
        assert capacity < 60
        found = tier.stored(SIZE)
        with pytest.raises(DiskWriteFailed, match="full"):
            write(tier, [stored(99)], SIZE)
        tier.delete(found[capacity - 1 :])
        write(tier, [stored(99)], SIZE)
        assert tier.held_bytes < SMALL


def test_a_full_map_degrades_and_heals(disk, clock):
    """A reader that stays keeps all freed pages from being used again (a stuck tool, say)."""
    data = dict(zip(chain(20), write(disk, chain(20), SIZE), strict=True))
    with disk._table._env.begin():
        for turn in range(100):
            disk.delete([stored(100 + turn - 1)])
            with contextlib.suppress(DiskWriteFailed):
                write(disk, [stored(100 + turn)], SIZE)
            if disk.degraded:
                break
        assert "MapFull" in disk.degraded_reason
        assert all(read(disk, key, SIZE) == block for key, block in data.items())
        with pytest.raises(DiskWriteFailed, match="not tried again yet"):
            write(disk, [stored(200)], SIZE)
        held = disk.held_bytes
        disk.delete([stored(0)])
        assert disk.held_bytes < held
        assert read(disk, stored(0), SIZE) is None
    clock.now += 1.0
    for _ in range(3):  # The pages come free in two transactions.
        with contextlib.suppress(DiskWriteFailed):
            write(disk, [stored(200)], SIZE)
        clock.now += 10.0
    assert not disk.degraded
    assert read(disk, stored(200), SIZE) is not None
    assert file_bytes(disk) <= SMALL


def test_a_full_disk_degrades_and_heals_with_ever_longer_pauses(disk, clock):
    data = write(disk, chain(3), SIZE)
    with files_at_most(file_bytes(disk) + 50_000):
        for wait in (1.0, 2.0, 4.0):
            with pytest.raises(DiskWriteFailed, match="Error"):
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
    held = disk.held_bytes

    def fails(names):
        raise lmdb.DiskError("I/O error")

    monkeypatch.setattr(disk._table, "remove", fails)
    disk.delete([stored(1)])
    disk.delete([stored(2)])
    assert disk.degraded
    assert disk.counts.delete_errors == 2
    assert disk.held_bytes == held
    monkeypatch.undo()
    clock.now += 100.0
    write(disk, [stored(2)], SIZE)
    assert [read(disk, stored(n), SIZE) is not None for n in range(3)] == [True, False, True]
    disk.delete([])
    assert read(disk, stored(2), SIZE) is not None, "written since: nothing is owed"


def test_an_error_of_lmdb_is_a_miss_and_the_block_stays(disk, monkeypatch):
    def broken(name, record, value, out):
        raise lmdb.CorruptedError("located page was wrong type")

    data = write(disk, chain(1), SIZE)
    monkeypatch.setattr(disk_table, "_fill", broken)
    assert read(disk, stored(0), SIZE) is None
    assert disk.counts.read_errors == 1
    monkeypatch.undo()
    assert read(disk, stored(0), SIZE) == data[0]


# --------------------------------------------------------- what ends a process, at worst


def run_python(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """In a process of its own, since what is tested for is its death."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


READ_ALL = """
import sys
from kvstore.core.errors import DiskInvalid
from kvstore.tiers.disk import DiskTier
from tests.tiers.helpers import BLOCK, CAP, read, write, stored
try:
    disk = DiskTier.open(sys.argv[1], CAP)
except DiskInvalid as error:
    print("refused")
else:
    found = disk.stored(BLOCK)
    print(len(found), sum(read(disk, key) is not None for key in found))
    try:
        write(disk, [stored(1000)])
    except Exception:
        print(disk.degraded_reason)
    disk.close()
"""


def test_a_file_that_was_cut_off_ends_nothing(tmp_path):
    with closing(DiskTier.open(tmp_path / "whole", CAP)) as tier:
        add_namespace(tier.names)
        for key in chain(30):
            write(tier, [key])
        size = file_bytes(tier)
    whole = 0
    for kept in range(0, size, size // 16 // 4096 * 4096):
        folder = tmp_path / str(kept)
        shutil.copytree(tmp_path / "whole", folder)
        os.truncate(folder / "data.mdb", kept)
        done = run_python(READ_ALL, folder)
        assert done.returncode == 0, (kept, done.stderr)
        if done.stdout[0].isdigit():
            found, good = map(int, done.stdout.splitlines()[0].split())
            assert good <= found <= 30
            whole = max(whole, good)
    assert 0 < whole <= 30


WRITE_ON = """
import sys
from kvstore.tiers.disk import DiskTier
from tests.tiers.helpers import CAP, BLOCK, add_namespace, chain, write
disk = DiskTier.open(sys.argv[1], CAP)
add_namespace(disk.names)
keys = chain(4000)
for start in range(0, 4000, 8):
    write(disk, keys[start:start + 8])
    print(start + 8, flush=True)
"""


@pytest.mark.parametrize("batches", [1, 2, 5, 11, 23])
def test_a_killed_writer_leaves_whole_batches_and_all_that_it_reported(tmp_path, batches):
    command = [sys.executable, "-c", WRITE_ON, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for _ in range(batches):
            reported = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        reported = int([str(reported), *writer.stdout.read().split()][-1])
    with closing(DiskTier.open(tmp_path, CAP)) as tier:
        found = tier.stored(BLOCK)
        assert found == chain(len(found))
        assert len(found) % 8 == 0
        assert len(found) >= reported
        assert all(read(tier, key) is not None for key in found)
        assert tier.counts.orphans == tier.counts.bad_entries == 0
        write(tier, [stored(9_000)])


FORK = """
import os, sys
from kvstore.tiers.disk import DiskTier
from tests.tiers.helpers import CAP, add_namespace, chain, read, write
disk = DiskTier.open(sys.argv[1], CAP)
add_namespace(disk.names)
data = write(disk, chain(2))
assert read(disk, chain(2)[0]) == data[0]
if os.fork() == 0:
    sys.exit()
os.wait()
print(read(disk, chain(2)[1]) == data[1], write(disk, chain(1)) != [])
"""


def test_a_fork_that_ends_leaves_its_parent_alone(tmp_path):
    done = run_python(FORK, tmp_path)
    assert done.stdout == "True True\n", done.stderr
