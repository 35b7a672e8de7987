"""Device memory as one object: made, passed on, mapped in another process, given back.

Memory that is made is pages in a range of addresses of its own (virtual memory management), passed on as a
file descriptor: like a memory file it has no name and goes with its last holder. Where a device can't do
that, it is ordinary memory with a handle of CUDA IPC. Whoever imports takes one range a pool, of its size.

All is for the thread that has the device's context (`Device.current`). Nothing is left behind by a call that
fails half-way.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Self

from kvstore.cuda.driver import CudaFailed, Device

__all__ = ["DeviceMemory", "round_up"]


def round_up(size: int, granularity: int) -> int:
    return -(-size // granularity) * granularity


@dataclass(slots=True)
class DeviceMemory:
    """`fd`, this object's own, or `ipc` is what it is passed on by; of memory that was imported, neither."""

    address: int
    size_bytes: int
    fd: int | None
    ipc: bytes
    _undo: ExitStack

    @classmethod
    def make(cls, device: Device, size: int) -> Self:
        """At least `size` bytes, rounded up to what the device's pages are multiples of."""
        with _undoing() as undo:
            if not device.exports_fds:
                address = device.allocate(size)
                undo.callback(device.free, address)
                return cls(address, size, None, device.export_ipc(address), undo)
            size = round_up(size, device.granularity_bytes())
            handle = device.create(size)
            with _undoing() as handled:
                handled.callback(device.release, handle)
                address = _map(device, handle, size, undo)
                fd = device.export_fd(handle)
                undo.callback(os.close, fd)
            # The mapping and the descriptor hold the pages from here on.
            handled.close()
            # Like a memory file's: a program that is started must not hold the memory.
            os.set_inheritable(fd, False)
            return cls(address, size, fd, b"", undo)

    @classmethod
    def import_fd(cls, device: Device, fd: int, size: int) -> Self:
        """`size` as it was made. The descriptor stays the caller's."""
        with _undoing() as undo:
            handle = device.import_fd(fd)
            with _undoing() as handled:
                handled.callback(device.release, handle)
                address = _map(device, handle, size, undo)
            handled.close()
            return cls(address, size, None, b"", undo)

    @classmethod
    def import_ipc(cls, device: Device, ipc: bytes, size: int) -> Self:
        with _undoing() as undo:
            address = device.open_ipc(ipc)
            undo.callback(device.close_ipc, address)
            return cls(address, size, None, b"", undo)

    def close(self) -> None:
        """Nobody on this side may use it any more. Who else maps it still has it."""
        self.address, self.fd = 0, None
        self._undo.close()


@contextmanager
def _undoing() -> Iterator[ExitStack]:
    """What is to be undone if it fails; all of it is tried, and what fails of that doesn't hide why."""
    undo = ExitStack()
    try:
        yield undo
    except BaseException:
        with suppress(CudaFailed):
            undo.close()
        raise


def _map(device: Device, handle: int, size: int, undo: ExitStack) -> int:
    address = device.reserve(size)
    undo.callback(device.free_range, address, size)
    device.map(address, size, handle)
    undo.callback(device.unmap, address, size)
    device.allow(address, size)
    return address
