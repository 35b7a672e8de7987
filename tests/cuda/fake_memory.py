"""Device memory as memory files, at real addresses of this process: a pointer can be followed.

A range is reserved without access and a memory file mapped over it, so another process that imports the
descriptor sees the same bytes, as it would on a device.
"""

import ctypes
import mmap
import os
import struct
from dataclasses import dataclass, field

from kvstore.cuda.driver import CudaFailed

__all__ = ["FakeMemory", "Pages"]

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

PROT_NONE, MAP_FIXED = 0, 0x10
IPC = struct.Struct("<QQQ")


@dataclass(eq=False)
class Pages:
    """`is_own`: made here, not imported, so it counts as this device's memory in use."""

    fd: int
    size: int
    is_own: bool
    holders: int = 1


@dataclass
class Range:
    size: int
    pages: Pages | None = None
    is_allowed: bool = False


@dataclass
class FakeMemory:
    """Errors are what the driver says to the same mistake."""

    size_bytes: int
    granularity: int
    used_bytes: int = 0
    ranges: dict[int, Range] = field(default_factory=dict)
    handles: dict[int, Pages] = field(default_factory=dict)
    # Made the old way: the pages of each.
    allocated: dict[int, Pages] = field(default_factory=dict)
    opened: set[int] = field(default_factory=set)
    _last_handle: int = 0

    @property
    def pages_count(self) -> int:
        """So many descriptors it holds."""
        mapped = {found.pages.fd for found in self.ranges.values() if found.pages is not None}
        return len(mapped | {pages.fd for pages in self.handles.values()})

    def reserve(self, size: int) -> int:
        self._check("cuMemAddressReserve", size > 0 and size % self.granularity == 0)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        address = libc.mmap(None, size, PROT_NONE, flags, -1, 0)
        self.ranges[address] = Range(size)
        return address

    def free_range(self, address: int, size: int) -> None:
        found = self._range("cuMemAddressFree", address, size)
        self._check("cuMemAddressFree", found.pages is None)
        del self.ranges[address]
        libc.munmap(address, size)

    def create(self, size: int) -> int:
        self._check("cuMemCreate", size > 0 and size % self.granularity == 0)
        return self._new_handle(self._new_pages("cuMemCreate", size))

    def release(self, handle: int) -> None:
        self._let_go(self._pages("cuMemRelease", handle))
        del self.handles[handle]

    def map(self, address: int, size: int, handle: int) -> None:
        found, pages = self._range("cuMemMap", address, size), self._pages("cuMemMap", handle)
        self._check("cuMemMap", pages.size == size and found.pages is None)
        self._place(address, size, pages.fd)
        found.pages = pages
        pages.holders += 1

    def unmap(self, address: int, size: int) -> None:
        found = self._range("cuMemUnmap", address, size)
        pages = found.pages
        if pages is None:
            raise CudaFailed("cuMemUnmap", "CUDA_ERROR_INVALID_VALUE")
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED
        libc.mmap(address, size, PROT_NONE, flags, -1, 0)
        found.pages, found.is_allowed = None, False
        self._let_go(pages)

    def allow(self, address: int, size: int) -> None:
        found = self._range("cuMemSetAccess", address, size)
        self._check("cuMemSetAccess", found.pages is not None)
        libc.mprotect(address, size, mmap.PROT_READ | mmap.PROT_WRITE)
        found.is_allowed = True

    def export_fd(self, handle: int) -> int:
        fd = os.dup(self._pages("cuMemExportToShareableHandle", handle).fd)
        os.set_inheritable(fd, True)  # Nobody says that the driver's is not.
        return fd

    def import_fd(self, fd: int) -> int:
        try:
            size = os.fstat(fd).st_size
        except OSError:
            size = 0
        self._check("cuMemImportFromShareableHandle", size > 0)
        return self._new_handle(Pages(os.dup(fd), size, is_own=False))

    def allocate(self, size: int) -> int:
        address = self.reserve(-(-size // self.granularity) * self.granularity)
        size = self.ranges[address].size
        try:
            pages = self._new_pages("cuMemAlloc", size)
        except CudaFailed:
            self.free_range(address, size)
            raise
        self._place(address, size, pages.fd)
        self.ranges[address].pages = self.allocated[address] = pages
        self.allow(address, size)
        return address

    def free(self, address: int) -> None:
        self._check("cuMemFree", address in self.allocated)
        del self.allocated[address]
        size = self.ranges[address].size
        self.unmap(address, size)
        self.free_range(address, size)

    def export_ipc(self, address: int) -> bytes:
        # Pages that were mapped by hand have no such handle: this is what expandable segments run into.
        self._check("cuIpcGetMemHandle", address in self.allocated)
        pages = self.allocated[address]
        return IPC.pack(os.getpid(), pages.fd, pages.size).ljust(64, b"\0")

    def open_ipc(self, handle: bytes) -> int:
        pid, fd, size = IPC.unpack_from(handle)
        try:
            own = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR)
        except OSError:
            raise CudaFailed("cuIpcOpenMemHandle", "CUDA_ERROR_INVALID_VALUE") from None
        address = self.reserve(size)
        self._place(address, size, own)
        self.ranges[address].pages = Pages(own, size, is_own=False)
        self.allow(address, size)
        self.opened.add(address)
        return address

    def close_ipc(self, address: int) -> None:
        self._check("cuIpcCloseMemHandle", address in self.opened)
        self.opened.remove(address)
        size = self.ranges[address].size
        self.unmap(address, size)
        self.free_range(address, size)

    def is_device(self, call: str, address: int, size: int) -> bool:
        """Whether these bytes are on the device. Half of them is a mistake; so is what may not be touched."""
        for start, found in self.ranges.items():
            if address < start + found.size and start < address + size:
                inside = start <= address and address + size <= start + found.size
                self._check(call, inside and found.is_allowed)
                return True
        return False

    def _new_pages(self, call: str, size: int) -> Pages:
        if self.used_bytes + size > self.size_bytes:
            raise CudaFailed(call, "CUDA_ERROR_OUT_OF_MEMORY")
        fd = os.memfd_create("fake-cuda", os.MFD_CLOEXEC)
        os.ftruncate(fd, size)
        self.used_bytes += size
        return Pages(fd, size, is_own=True)

    def _new_handle(self, pages: Pages) -> int:
        self._last_handle += 1
        self.handles[self._last_handle] = pages
        return self._last_handle

    def _let_go(self, pages: Pages) -> None:
        pages.holders -= 1
        if not pages.holders:
            os.close(pages.fd)
            self.used_bytes -= pages.size if pages.is_own else 0

    def _place(self, address: int, size: int, fd: int) -> None:
        placed = libc.mmap(address, size, PROT_NONE, mmap.MAP_SHARED | MAP_FIXED, fd, 0)
        assert placed == address, os.strerror(ctypes.get_errno())

    def _range(self, call: str, address: int, size: int) -> Range:
        found = self.ranges.get(address)
        if found is None or found.size != size:
            raise CudaFailed(call, "CUDA_ERROR_INVALID_VALUE")
        return found

    def _pages(self, call: str, handle: int) -> Pages:
        if handle not in self.handles:
            raise CudaFailed(call, "CUDA_ERROR_INVALID_VALUE")
        return self.handles[handle]

    def _check(self, call: str, good: bool) -> None:
        if not good:
            raise CudaFailed(call, "CUDA_ERROR_INVALID_VALUE")
