"""A tier laid out for blocks of some sizes, and what is read of it told as versions (promises.py)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvstore.core.types import StoredKey
from kvstore.tiers.disk import CAP_BYTES_MIN, DiskTier, ReadOutcome
from kvstore.tiers.files import Files
from kvstore.tiers.pool import frame_stride_bytes
from tests.tiers.promises import Broken, bytes_of, stored_key

__all__ = ["CAP", "CRASH_SIZES", "Sizes", "find_versions", "folder_bytes", "open_tier", "read_one"]

CAP = CAP_BYTES_MIN


class Sizes:
    """Of a block, and frames for some of them: aligned and padded as those of a pool are, so that they are
    moved as they lie; where `padded` is False they are cut to the block's bytes, and go through a buffer."""

    def __init__(self, block_bytes: int, ranks: int, *, padded: bool = True) -> None:
        self.block_bytes, self.ranks = block_bytes, ranks
        self.stride_bytes = frame_stride_bytes(block_bytes)
        self.part_bytes = self.stride_bytes if padded else block_bytes

    @property
    def all_bytes(self) -> int:
        return self.block_bytes * self.ranks

    def frames(self, count: int) -> list[list[NDArray[np.uint8]]]:
        """By block and rank. Filled with junk."""
        memory = np.full(count * self.ranks * self.stride_bytes + 4096, 0xA5, np.uint8)
        start = -memory.ctypes.data % 4096
        cut = memory[start : start + count * self.ranks * self.stride_bytes]
        rows = cut.reshape(count, self.ranks, self.stride_bytes)
        return [
            [rows[place, rank, : self.part_bytes] for rank in range(self.ranks)] for place in range(count)
        ]

    def data_of(self, parts: Sequence[NDArray[np.uint8]]) -> bytes:
        return b"".join(part[: self.block_bytes].tobytes() for part in parts)

    def filled(self, blocks: Mapping[int, int]) -> list[list[memoryview]]:
        frames = self.frames(len(blocks))
        for parts, (number, version) in zip(frames, blocks.items(), strict=True):
            data = bytes_of(number, version, self.all_bytes)
            for rank, part in enumerate(parts):
                share = data[rank * self.block_bytes :][: self.block_bytes]
                part[: self.block_bytes] = np.frombuffer(share, np.uint8)
        return [[part.data for part in parts] for parts in frames]


# Few blocks fill the cap, in segments of a few slots each.
CRASH_SIZES = Sizes(30_000, 2)


def open_tier(
    folder: Path, sizes: Sizes, cap_bytes: int = CAP, files: Files | None = None, **options: Any
) -> DiskTier:
    """Laid out for blocks of these sizes, in namespace 1 and tenants 1 and 2."""
    tier = DiskTier.open(folder, cap_bytes, files=files, **options)
    try:
        names = ("one", "two")
        tier.names.namespace_id(b"f" * 32, sizes.block_bytes, 16, sizes.ranks, {})
        for name in names:
            tier.names.tenant_id(name)
        tier.names.writer_id("engine", "build")
        tier.lay_out(sizes.block_bytes, sizes.ranks)
    except BaseException:
        tier.close()
        raise
    return tier


def find_versions(tier: DiskTier, sizes: Sizes, possible: Mapping[int, set[int]]) -> dict[int, int]:
    """Reads blocks and tells their versions. AssertionError where the bytes are of none that is possible."""
    numbers = sorted(possible)
    frames = sizes.frames(len(numbers))
    outcomes = tier.read([stored_key(number) for number in numbers], frames)
    found = {}
    for number, parts, outcome in zip(numbers, frames, outcomes, strict=True):
        if outcome is ReadOutcome.GOOD:
            data = sizes.data_of(parts)
            versions = [v for v in possible[number] if v and data == bytes_of(number, v, sizes.all_bytes)]
            if not versions:
                raise Broken(f"block {number} has bytes of no version of {sorted(possible[number])}")
            found[number] = versions[0]
    return found


def read_one(tier: DiskTier, sizes: Sizes, key: StoredKey) -> bytes | None:
    """None where it isn't GOOD."""
    frames = sizes.frames(1)
    [outcome] = tier.read([key], frames)
    return sizes.data_of(frames[0]) if outcome is ReadOutcome.GOOD else None


def folder_bytes(folder: Path) -> int:
    """What the folder takes, as the file system counts it, or as long as its files are, if that is more."""
    stats = [path.stat() for path in (folder, *folder.iterdir())]
    return sum(max(each.st_size, each.st_blocks * 512) for each in stats)
