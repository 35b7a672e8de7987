"""Pools in host memory: one memory file a rank, cut into equal frames."""

from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from kvstore.core.errors import check
from kvstore.tiers.memory import MemoryFile

__all__ = ["FRAME_ALIGNMENT", "HostPool", "frame_stride_bytes"]

# Frames start at multiples of this, so that O_DIRECT works on every device.
FRAME_ALIGNMENT = 4096


def frame_stride_bytes(block_bytes: int) -> int:
    """The distance from one frame to the next."""
    return -(-block_bytes // FRAME_ALIGNMENT) * FRAME_ALIGNMENT


class HostPool:
    """One frame number stands for the same frame in the memory of every rank."""

    def __init__(
        self, name: str, frame_count: int, block_bytes: int, ranks: int, *, option: str = ""
    ) -> None:
        check(frame_count > 0, f"pool {name}: {frame_count} frames")
        check(block_bytes > 0, f"pool {name}: blocks of {block_bytes} bytes")
        check(ranks > 0, f"pool {name}: {ranks} ranks")
        self.name = name
        self.frame_count = frame_count
        self.block_bytes = block_bytes
        self.ranks = ranks
        self.stride_bytes = frame_stride_bytes(block_bytes)
        self._files: list[MemoryFile] = []
        self._frames: list[NDArray[np.uint8]] = []
        try:
            for rank in range(ranks):
                file = MemoryFile(f"{name}-{rank}", frame_count * self.stride_bytes, option=option)
                self._files.append(file)
                self._frames.append(file.map().reshape(frame_count, self.stride_bytes))
        except BaseException:
            self.close()
            raise

    @property
    def frame_bytes(self) -> int:
        """What a frame takes on all ranks together, padding included."""
        return self.ranks * self.stride_bytes

    @property
    def size_bytes(self) -> int:
        """Of all ranks together."""
        return self.ranks * self.frame_count * self.stride_bytes

    @property
    def fds(self) -> tuple[int, ...]:
        """By rank. They belong to the pool; whoever sends one sends a copy."""
        return tuple(file.fd for file in self._files)

    def frames(self, rank: int) -> NDArray[np.uint8]:
        """[frame_count, stride_bytes]; a block is the first `block_bytes` of its row.

        Don't keep it: the memory is given back only when no array over it is left.
        """
        check(self._frames, f"pool {self.name} is closed")
        return self._frames[rank]

    def address(self, rank: int) -> int:
        """Of frame 0 in this process; good until `close`."""
        return self.frames(rank).ctypes.data

    def close(self) -> None:
        self._frames.clear()
        for file in self._files:
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
