"""Rows of groups 4 and 5 that concern the disk tier alone, by their numbers (tests/CASES.md)."""

import ast
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import lmdb
import pytest

from kvstore.core.errors import CheckFailed, DiskInvalid
from kvstore.tiers.disk import DiskTier, DiskWriteFailed
from kvstore.tiers.disk_environment import DATA_FILE, LOCK_FILE
from kvstore.tiers.disk_format import TABLES
from tests.tiers.accounts import check_space, numbers_of
from tests.tiers.conformance import Clock
from tests.tiers.promises import stored_key
from tests.tiers.sized import CAP, Sizes, find_versions, folder_bytes, open_tier

ROOT = Path(__file__).parent.parent.parent
SIZES = Sizes(30_000, 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "disk"


@pytest.fixture
def disk(folder: Path) -> Iterator[DiskTier]:
    with closing(open_tier(folder, SIZES, clock=Clock())) as tier:
        yield tier


def write(disk: DiskTier, *numbers: int) -> dict[int, int]:
    versions = dict.fromkeys(numbers, 1)
    disk.write([stored_key(number) for number in numbers], SIZES.filled(versions))
    return versions


def all_there(disk: DiskTier, kept: dict[int, int]) -> bool:
    return find_versions(disk, SIZES, {number: {version} for number, version in kept.items()}) == kept


def run_python(
    program: str, *arguments: object, before: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    command = [*before, sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)


# ---------------------------------------------------------------------- crash, restart


def test_case_4_03_a_full_index_fails_writes_while_eight_threads_read(disk: DiskTier, folder: Path) -> None:
    """The map is as large as it will ever be from the start: nothing is resized under a transaction."""
    kept = write(disk, *range(20))
    disk._table._env.set_mapsize((folder / DATA_FILE).stat().st_size + 16 * 4096)
    reading, wrong = threading.Event(), list[str]()
    reading.set()

    def read() -> None:
        while reading.is_set():
            if not all_there(disk, kept):
                wrong.append("a block was not there")

    readers = [threading.Thread(target=read) for _ in range(8)]
    for reader in readers:
        reader.start()
    failed = 0
    try:
        for first in range(100, 6_000, 100):
            # A transaction that reads for as long as this: freed pages are not used again meanwhile.
            with disk._table._env.begin(), contextlib.suppress(DiskWriteFailed):
                for again in range(20):
                    write(disk, first + again % 2)
                continue
            failed += 1
            if failed == 3:
                break
    finally:
        reading.clear()
        for reader in readers:
            reader.join()
    assert failed == 3
    assert wrong == []
    assert all_there(disk, kept)


def test_case_4_05_nothing_starts_processes_by_fork() -> None:
    """A child that has LMDB's environment open would clear its parent's reader slots when it ends."""
    forks = {"fork", "forkpty", "fork_exec", "set_start_method"}
    for package in ("kvstore", "engine", "bench"):
        for file in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") in (
                    "os",
                    "multiprocessing",
                ):
                    assert node.attr not in forks, f"{file}: {node.attr}"
                if isinstance(node, ast.Call) and getattr(
                    node.func, "attr", getattr(node.func, "id", "")
                ) in ("get_context",):
                    assert [each.value for each in node.args if isinstance(each, ast.Constant)] == [
                        "spawn"
                    ], file
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "ProcessPoolExecutor":
                    assert any(each.arg == "mp_context" for each in node.keywords), file


OPEN = """
import sys
from kvstore.core.errors import DiskInvalid
from kvstore.tiers.disk import DiskTier
try:
    DiskTier.open(sys.argv[1], 4 << 20).close()
    print("opened")
except DiskInvalid as error:
    print(error)
"""


def test_case_4_06_a_process_of_another_container_is_refused(disk: DiskTier, folder: Path) -> None:
    """Its process ids are others, so that a check of these would see nobody: the lock is the file's."""
    other = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc")
    can = shutil.which("unshare") and not subprocess.run([*other, "true"], capture_output=True).returncode
    done = run_python(OPEN, folder, before=other if can else ())
    assert f"in use by another kvstore, pid {os.getpid()} on {os.uname().nodename}" in done.stdout, (
        done.stderr
    )


def test_case_4_10_a_block_of_another_size_is_refused_alone(disk: DiskTier) -> None:
    kept = write(disk, 0, 1)
    for wrong in (Sizes(30_001, 1, padded=False), Sizes(50_000, 1), Sizes(15_000, 2)):
        with pytest.raises(CheckFailed, match="a block of"):
            disk.write([stored_key(2)], wrong.filled({2: 1}))
    assert not disk.degraded
    assert all_there(disk, kept | write(disk, 3))
    check_space(disk)


def test_case_4_11_a_damaged_block_is_a_counted_miss(disk: DiskTier, folder: Path) -> None:
    kept = write(disk, 0, 1, 2)
    segment = folder / "segment-000000"
    raw = bytearray(segment.read_bytes())
    raw[SIZES.stride_bytes + 100] ^= 1
    segment.write_bytes(raw)
    [bad] = [number for number in kept if not all_there(disk, {number: 1})]
    assert disk.counts.bad_entries == 1
    assert all_there(disk, {number: 1 for number in kept if number != bad} | write(disk, bad))
    assert disk.counts.bad_entries == 1
    check_space(disk)


def test_case_4_18_the_index_syncs_and_is_never_written_through_a_map(disk: DiskTier) -> None:
    flags = disk._table._env.flags()
    assert flags["sync"]
    assert flags["metasync"]
    assert not flags["writemap"]
    assert not flags["map_async"]


# ----------------------------------------------------------------- out of space, limits


def test_case_5_01_a_cap_below_what_is_there_holds_before_anything_is_served(folder: Path) -> None:
    kept: dict[int, int] = {}
    with closing(open_tier(folder, SIZES, 4 * CAP)) as tier:
        for first in range(0, 4_000, 100):
            kept |= write(tier, *range(first, first + 10))
        assert folder_bytes(folder) > 2 * CAP
    # What others have left there counts, too.
    with closing(open_tier(folder, SIZES, CAP)) as tier:
        assert folder_bytes(folder) <= CAP
        found = numbers_of(tier.found(SIZES.all_bytes), kept)
        assert 0 < len(found) == tier.capacity_blocks(SIZES.block_bytes, SIZES.ranks)
        assert all_there(tier, dict.fromkeys(found, 1))
        check_space(tier)


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_case_5_04_the_cap_counts_all_ranks_together(folder: Path, ranks: int) -> None:
    sizes = Sizes(20_000, ranks)
    with closing(open_tier(folder, sizes)) as tier:
        capacity = tier.capacity_blocks(sizes.block_bytes, ranks)
        for number in range(capacity):
            tier.write([stored_key(number)], sizes.filled({number: 1}))
        assert CAP // 2 < capacity * ranks * sizes.stride_bytes < CAP
        assert folder_bytes(folder) <= CAP


def test_case_5_07_a_block_that_cannot_be_deleted_keeps_no_other_from_it(
    disk: DiskTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coldest can't be, again and again: the others go, their room is used, and it is counted."""
    kept = write(disk, *range(10))
    remove = disk._table._remove_one

    def fails_for_the_first(txn: object, name: bytes) -> object:
        if name.endswith(stored_key(0).key):
            raise lmdb.CorruptedError("located page was wrong type")
        return remove(txn, name)

    monkeypatch.setattr(disk._table, "_remove_one", fails_for_the_first)
    # Together with it in one call, and alone after it.
    disk.delete([stored_key(number) for number in (9, 8, 0, 7)])
    assert disk.counts.delete_errors >= 1
    for number in (6, 5):
        disk.delete([stored_key(number)])
    for number in range(5, 10):
        kept.pop(number)
    assert disk.held_blocks == len(kept)
    kept |= write(disk, 10, 11)
    assert not disk.degraded
    monkeypatch.undo()
    disk.delete([])
    kept.pop(0)
    assert disk.held_blocks == len(kept)
    assert all_there(disk, kept | write(disk, 20, 21))
    check_space(disk)


READER = """
import sys, lmdb
env = lmdb.open(sys.argv[1], readonly=True, max_dbs=10)
print("reading", flush=True)
with env.begin() as txn:
    txn.get(b"magic")
    print("read", flush=True)
    sys.stdin.read()
"""
READERS = """
import os, signal, sys, lmdb
for turn in range(200):
    pid = os.fork()
    if not pid:
        env = lmdb.open(sys.argv[1], readonly=True, max_dbs=10)
        txn = env.begin()
        txn.get(b"magic")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
print("done")
"""


def test_case_5_09_two_hundred_killed_readers_leave_room_for_ours(disk: DiskTier, folder: Path) -> None:
    """Each leaves its slot in LMDB's table of readers behind, which has room for a few only."""
    kept = write(disk, *range(5))
    done = run_python(READERS, folder)
    assert done.stdout == "done\n", done.stderr
    for number in range(100, 110):
        kept |= write(disk, number)
        assert all_there(disk, kept)
    assert disk.counts.read_errors == 0
    assert not disk.degraded


def test_case_5_10_an_older_lock_file_with_room_for_more_readers_is_told(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.mkdir()
    with lmdb.open(str(folder), max_readers=126, max_dbs=len(TABLES)):
        pass
    (folder / DATA_FILE).unlink()
    assert (folder / LOCK_FILE).stat().st_size > 8_000
    with closing(open_tier(folder, SIZES)) as tier:
        assert "room for 126 readers" in caplog.text
        assert all_there(tier, write(tier, 0))


def test_case_5_11_a_reader_that_stays_costs_writes_and_nothing_else(disk: DiskTier, folder: Path) -> None:
    """A stuck tool holds every page that is freed. The map is the most that the index takes; when the tool is
    gone, or dead, its pages are used again."""
    kept = write(disk, *range(10))
    process = subprocess.Popen(
        [sys.executable, "-c", READER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert [process.stdout.readline(), process.stdout.readline()] == ["reading\n", "read\n"]
        failed = 0
        for turn in range(2_000):
            try:
                write(disk, 100 + turn % 3)
            except DiskWriteFailed:
                failed += 1
                if failed == 3:
                    break
        assert failed == 3, "the map never became full"
        assert folder_bytes(folder) <= CAP
        assert all_there(disk, kept)
        process.send_signal(signal.SIGKILL)
    for turn in range(6):
        with contextlib.suppress(DiskWriteFailed):
            write(disk, 200 + turn)
    assert not disk.degraded
    assert all_there(disk, kept)
    assert folder_bytes(folder) <= CAP
    check_space(disk)


def test_case_5_20_an_index_is_read_ahead_of_and_small(disk: DiskTier, folder: Path) -> None:
    """On a cold device the index is read once, in a row, at the start; blocks are not read through it."""
    write(disk, *range(30))
    assert (folder / DATA_FILE).stat().st_size < 30 * SIZES.all_bytes // 4


def test_a_second_tier_of_this_process_is_refused(disk: DiskTier, folder: Path) -> None:
    with pytest.raises(DiskInvalid, match="in use"):
        DiskTier.open(folder, CAP)
