"""Full disks, I/O errors, cut-off files and killed writers: writing stops, reading and the process go on."""

import contextlib
import errno
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import lmdb
import pytest

from kvstore.core.types import StoredKey
from kvstore.tiers import disk_reading
from kvstore.tiers.disk import DiskWriteFailed, ReadOutcome
from kvstore.tiers.files import DirectFiles
from tests.tiers.helpers import (
    BLOCK,
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


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


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


# --------------------------------------------------------------------------------- late


class Hanging(DirectFiles):
    """Calls of the kind in `kind` wait until `go`, and then do what they were to do."""

    def __init__(self, kind: str = "") -> None:
        self.kind = kind
        self.go = threading.Event()

    def read(self, fd, parts, offset):
        self._wait("read")
        super().read(fd, parts, offset)

    def write(self, fd, parts, offset):
        self._wait("write")
        super().write(fd, parts, offset)

    def sync(self, fd):
        self._wait("sync")
        super().sync(fd)

    def _wait(self, kind):
        if kind == self.kind:
            assert self.go.wait(60)


@pytest.fixture
def hanging(tmp_path: Path, clock):
    files = Hanging()
    tier = open_tier(tmp_path, SMALL, SIZE, clock=clock, files=files, deadline_seconds=0.2)
    yield tier, files
    files.go.set()
    assert tier.close(60)


def test_a_late_read_is_told_when_it_returns_at_last(hanging):
    tier, files = hanging
    data = write(tier, chain(2), SIZE)
    files.kind = "read"
    back: queue.SimpleQueue[int] = queue.SimpleQueue()
    outs = [frames(SIZE), frames(SIZE), frames(SIZE)]
    outcomes = tier.read([*chain(2), stored(99)], outs, returned=back.put)
    assert outcomes == [ReadOutcome.LATE, ReadOutcome.LATE, ReadOutcome.BAD]
    assert tier.counts.late_reads == 2
    assert tier.late_count == 1
    assert back.empty()
    files.go.set()
    assert sorted(back.get(timeout=60) for _ in range(2)) == [0, 1]
    assert [out[0].tobytes() for out in outs[:2]] == data, "it was still written to"
    assert [read(tier, key, SIZE) for key in chain(2)] == data
    assert tier.late_count == 0


def test_where_all_threads_hang_nobody_waits_again(hanging):
    tier, files = hanging
    write(tier, chain(8), SIZE)
    files.kind = "read"
    for key in chain(4):
        assert tier.read([key], [frames(SIZE)]) == [ReadOutcome.LATE]
    # With the threads all gone, what is queued would never be begun. That is no fault of the block: it is
    # late as the others are, but its frame is free at once.
    back: queue.SimpleQueue[int] = queue.SimpleQueue()
    outcomes = tier.read(chain(8)[4:6], [frames(SIZE), frames(SIZE)], returned=back.put)
    assert outcomes == [ReadOutcome.LATE] * 2
    assert sorted(back.get_nowait() for _ in range(2)) == [0, 1]
    assert tier.counts.late_reads == 6
    files.go.set()


@pytest.mark.parametrize("kind", ["write", "sync"])
def test_a_late_write_fails_and_its_slots_stay_taken_until_it_returns(hanging, clock, kind):
    tier, files = hanging
    write(tier, [stored(50)], SIZE)
    free = tier._layout.storage.space.free_count
    files.kind = kind
    with pytest.raises(DiskWriteFailed, match="not returned"):
        write(tier, chain(2), SIZE)
    assert tier.degraded
    assert read(tier, stored(50), SIZE) is not None
    assert tier._layout.storage.space.free_count == (free - 2 if kind == "write" else free)
    files.go.set()
    while tier.late_count:
        time.sleep(0.001)
    clock.now += 100
    data = write(tier, chain(tier.capacity_blocks(SIZE, 1) - 1), SIZE)
    assert not tier.degraded
    assert read(tier, stored(0), SIZE) == data[0]


class SlowToMake(DirectFiles):
    """A segment is not made before `gate` is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.made: list[str] = []

    def create(self, path: Path, size_bytes: int) -> int:
        self.made.append(path.name)
        self.gate.wait()
        return super().create(path, size_bytes)


def test_a_segment_that_is_late_is_not_made_twice(tmp_path, clock):
    """Else the second time would give its slots away again, and the next segment would never be made."""
    files = SlowToMake()
    with closing(open_tier(tmp_path, SMALL, SIZE, clock=clock, files=files, deadline_seconds=0.2)) as disk:
        for _ in range(3):
            with pytest.raises(DiskWriteFailed):
                write(disk, chain(1), SIZE)
            clock.now += 100
        files.gate.set()
        while disk.late_count:
            time.sleep(0.001)
        assert files.made == ["segment-000000"]
        # The deadline is short, and a machine may be busy: what is late is tried again.
        capacity = disk.capacity_blocks(SIZE, 1)
        for key in chain(capacity):
            while True:
                with contextlib.suppress(DiskWriteFailed):
                    write(disk, [key], SIZE)
                    break
                clock.now += 100
        assert files.made == sorted(set(files.made))
        assert disk.held_blocks == capacity


def test_a_transaction_that_comes_through_late_is_taken_back(hanging, clock, monkeypatch):
    tier, files = hanging
    write(tier, [stored(50)], SIZE)
    put = tier._table.put

    def late(*arguments):
        assert files.go.wait(60)
        return put(*arguments)

    monkeypatch.setattr(tier._table, "put", late)
    with pytest.raises(DiskWriteFailed, match="not returned"):
        write(tier, chain(2), SIZE)
    monkeypatch.undo()
    files.go.set()
    while tier.late_count:
        time.sleep(0.001)
    clock.now += 100
    data = write(tier, chain(tier.capacity_blocks(SIZE, 1) - 1, first=100), SIZE)
    assert [read(tier, key, SIZE) for key in chain(2)] == [None, None]
    assert read(tier, stored(100), SIZE) == data[0]


# --------------------------------------------------------- what ends a process, at worst


def run_python(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """In a process of its own, since what is tested for is its death."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


READ_ALL = """
import sys
from kvstore.core.errors import DiskInvalid
from kvstore.tiers.disk import DiskTier
from tests.tiers.helpers import BLOCK, CAP, add_namespace, read, write, stored
try:
    disk = DiskTier.open(sys.argv[1], CAP)
except DiskInvalid as error:
    print("refused")
else:
    add_namespace(disk.names)
    disk.lay_out(BLOCK, 1)
    found = disk.found(BLOCK)
    print(len(found), sum(read(disk, key) is not None for key in found))
    try:
        write(disk, [stored(1000)])
    except Exception:
        print(disk.degraded_reason)
    disk.close()
"""


def test_case_4_18_an_index_that_was_cut_off_ends_nothing(tmp_path):
    with closing(open_tier(tmp_path / "whole")) as tier:
        for key in chain(30):
            write(tier, [key])
    size = (tmp_path / "whole" / "data.mdb").stat().st_size
    whole = 0
    for kept in range(0, size, size // 6 // 4096 * 4096):
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
from tests.tiers.helpers import chain, open_tier, write
disk = open_tier(sys.argv[1])
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
    with closing(open_tier(tmp_path)) as tier:
        found = tier.found(BLOCK)
        assert found == chain(len(found))
        assert len(found) % 8 == 0
        assert len(found) >= reported
        assert all(read(tier, key) is not None for key in found)
        assert tier.counts.orphans == tier.counts.bad_entries == 0
        write(tier, [stored(9_000)])


FORK = """
import os, sys
from tests.tiers.helpers import chain, open_tier, read, write
disk = open_tier(sys.argv[1])
data = write(disk, chain(2))
assert read(disk, chain(2)[0]) == data[0]
if os.fork() == 0:
    sys.exit()
os.wait()
print(read(disk, chain(2)[1]) == data[1], write(disk, chain(1)) != [])
"""


def test_case_4_05_a_fork_that_ends_leaves_its_parent_alone(tmp_path):
    done = run_python(FORK, tmp_path)
    assert done.stdout == "True True\n", done.stderr
