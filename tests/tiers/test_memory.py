"""Memory files: sealed, allocated, nameless, and a refusal that says what to do where memory is wanting."""

import errno
import gc
import os
from pathlib import Path

import psutil
import pytest

from kvstore.core.errors import CheckFailed, PoolUnavailable
from kvstore.tiers import limits
from kvstore.tiers.memory import MemoryFile


def open_fds() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def test_maps_show_the_same_memory_through_any_descriptor():
    file = MemoryFile("gpu", 10_000)
    first, second = file.map(), file.map()
    first[9_999] = 7
    assert second[9_999] == 7
    assert os.pread(file.fd, 1, 9_999) == b"\7"
    file.close()
    assert first[9_999] == 7, "a map outlives the descriptor"


@pytest.mark.parametrize("size", [0, 5_000, 20_000])
def test_seals_prevent_resizing(size):
    file = MemoryFile("gpu", 10_000)
    with pytest.raises(PermissionError):
        os.ftruncate(file.fd, size)
    file.close()


def test_pages_are_allocated_at_the_start():
    file = MemoryFile("gpu", 1 << 20)
    assert os.fstat(file.fd).st_blocks * 512 == 1 << 20
    file.close()


def test_nothing_is_left_open_or_in_dev_shm():
    before = open_fds()
    file = MemoryFile("gpu", 10_000)
    array = file.map()
    # It never had a name there: what had, and has lost it, is told by that name. To look for new names in the
    # folder would find those of other processes.
    assert os.readlink(f"/proc/self/fd/{file.fd}").startswith("/memfd:")
    assert os.fstat(file.fd).st_nlink == 0
    assert not os.get_inheritable(file.fd)
    file.close()
    file.close()
    del array
    assert open_fds() == before
    with pytest.raises(CheckFailed):
        _ = file.fd


def test_more_than_the_machine_has_is_refused_with_a_value_that_would_fit():
    before = open_fds()
    with pytest.raises(PoolUnavailable) as refusal:
        MemoryFile("cpu", 1 << 50, option="--cpu-memory")
    text = str(refusal.value)
    for part in (str(1 << 50), "host memory", "available", "lower --cpu-memory", "would fit"):
        assert part in text
    assert open_fds() == before


def test_case_4_16_refused_when_the_kernel_has_no_pages(monkeypatch):
    def no_pages(fd, offset, length):
        raise OSError(errno.ENOSPC, "No space left on device")

    before = open_fds()
    monkeypatch.setattr(os, "posix_fallocate", no_pages)
    with pytest.raises(PoolUnavailable, match="No space left"):
        MemoryFile("gpu", 10_000)
    assert open_fds() == before


@pytest.mark.parametrize(
    ("line", "folder", "names"),
    [
        ("0::/pod/box", "pod/box", ("memory.max", "memory.current", "")),
        (
            "4:cpu,memory:/pod/box",
            "memory/pod/box",
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
        ),
        ("0::/not/mounted/here", "", ("memory.max", "memory.current", "")),
    ],
)
def test_case_5_22_the_limit_of_the_cgroup_counts(tmp_path: Path, monkeypatch, line, folder, names):
    monkeypatch.setattr(limits, "PROC", tmp_path)
    monkeypatch.setattr(limits, "CGROUPS", tmp_path / "cgroup")
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text(line + "\n3:cpuset:/\n")
    group = tmp_path / "cgroup" / folder
    group.mkdir(parents=True)
    limit, used, prefix = names
    (group / limit).write_text("1000000\n")
    (group / used).write_text("700000\n")
    (group / "memory.stat").write_text(f"anon 5\n{prefix}inactive_file 60000\n{prefix}active_file 40000\n")
    assert limits.memory_total_bytes() == 1_000_000
    assert limits.memory_available_bytes() == 400_000
    with pytest.raises(PoolUnavailable, match="400000 are available"):
        MemoryFile("cpu", 500_000)


def test_no_limit_where_the_cgroup_sets_none(tmp_path: Path, monkeypatch):
    free = psutil.virtual_memory().total
    monkeypatch.setattr(limits, "PROC", tmp_path)
    monkeypatch.setattr(limits, "CGROUPS", tmp_path)
    assert limits.memory_total_bytes() == free
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text("0::/\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert limits.memory_total_bytes() == free
