"""Pools: one memory file a rank, frames at a stride that O_DIRECT can use."""

import gc
import os

import numpy as np
import pytest

from kvstore.core.errors import CheckFailed, PoolUnavailable
from kvstore.tiers import pool as pool_module
from kvstore.tiers.memory import MemoryFile
from kvstore.tiers.pool import HostPool, frame_stride_bytes


@pytest.mark.parametrize(("block", "stride"), [(1, 4096), (4096, 4096), (4097, 8192), (368_640, 368_640)])
def test_stride(block, stride):
    assert frame_stride_bytes(block) == stride


def test_frames_of_each_rank_are_apart():
    with HostPool("gpu", 3, 5_000, 2) as pool:
        assert pool.size_bytes == 2 * 3 * 8192
        assert pool.frames(0).shape == (3, 8192)
        for rank in (0, 1):
            for frame in range(3):
                pool.frames(rank)[frame] = 10 * rank + frame
        for rank, fd in enumerate(pool.fds):
            for frame in range(3):
                assert os.pread(fd, 8192, frame * 8192) == bytes([10 * rank + frame]) * 8192


def test_close_gives_all_descriptors_up():
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    pool = HostPool("gpu", 3, 5_000, 2)
    pool.close()
    pool.close()
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(CheckFailed):
        pool.frames(0)


def test_want_of_memory_for_one_rank_leaves_nothing_of_the_others(monkeypatch):
    def second_fails(name: str, size: int, *, option: str = "") -> MemoryFile:
        return MemoryFile(name, size if name == "gpu-0" else 1 << 50, option=option)

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(pool_module, "MemoryFile", second_fails)
    with pytest.raises(PoolUnavailable, match="--gpu-memory"):
        HostPool("gpu", 3, 5_000, 2, option="--gpu-memory")
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("sizes", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_sizes_of_zero_are_a_bug(sizes):
    with pytest.raises(CheckFailed):
        HostPool("gpu", *sizes)


def test_a_fresh_pool_is_zero():
    with HostPool("gpu", 2, 100, 1) as pool:
        assert not np.any(pool.frames(0))
