"""Anonymous memory files: the host memory behind a pool.

A memory file has no name in any folder, so nothing is left behind when its holders are killed; it
is passed on as a file descriptor. It is sealed against resizing, since whoever maps a file that
another process then shrinks dies of SIGBUS. All its pages are allocated at the start, so that
want of memory is an error then and not a SIGBUS, or the kernel's out-of-memory killer, later.
"""

import fcntl
import mmap
import os

import numpy as np
from numpy.typing import NDArray

from kvstore.core.errors import PoolUnavailable, check
from kvstore.prefault import prefault
from kvstore.tiers.limits import memory_available_bytes

__all__ = ["MemoryFile"]

# Allocated in pieces: a signal makes the kernel undo and repeat a piece, not the whole.
PIECE_BYTES = 256 << 20
SEALS = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


class MemoryFile:
    """`option` is what an operator would turn down if the memory isn't there."""

    def __init__(self, name: str, size_bytes: int, *, option: str = "") -> None:
        check(size_bytes > 0, f"memory file {name}: {size_bytes} bytes")
        self.name = name
        self.size_bytes = size_bytes
        option = option or f"the size of the {name} pool"
        available = memory_available_bytes()
        if size_bytes > available:
            raise _unavailable(name, size_bytes, available, option, "too few")
        self._fd = os.memfd_create(f"kvstore-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self._fd, size_bytes)
            for start in range(0, size_bytes, PIECE_BYTES):
                os.posix_fallocate(self._fd, start, min(PIECE_BYTES, size_bytes - start))
            fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, SEALS)
        except OSError as error:
            self.close()
            raise _unavailable(name, size_bytes, available, option, str(error)) from error

    @property
    def fd(self) -> int:
        """To be sent to those who map the file. Belongs to this object until `close`."""
        check(self._fd >= 0, f"memory file {self.name} is closed")
        return self._fd

    def map(self) -> NDArray[np.uint8]:
        """The whole file, shared with all who map it. Unmapped when the last array over it is gone."""
        mapped = mmap.mmap(self.fd, self.size_bytes)
        prefault(mapped)
        return np.frombuffer(mapped, dtype=np.uint8)

    def close(self) -> None:
        """Gives the descriptor up; the memory lives as long as anybody maps it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _unavailable(name: str, size_bytes: int, available: int, option: str, why: str) -> PoolUnavailable:
    return PoolUnavailable(
        f"the {name} pool asks for {size_bytes} bytes of host memory; {available} are available: {why}",
        field=option,
        value=size_bytes,
        remedy=f"lower {option}; at most {available // 10 * 9} bytes would fit",
    )
