"""The calls of the CUDA driver that kvstore makes, in plain Python terms, and how they fail.

Two implementations: the driver itself (`bindings.py`), and the fake that the tests run everything on
(`tests/cuda/fake.py`). Addresses, streams, events and handles are ints that mean something to the `Device`
that gave them, and to nobody else.

What holds of a `Device`:

1. Its methods are for one thread at a time, within `current()`. None waits for work on the device, but for
   `synchronize`, which only who has mapped memory calls.
2. Work of one stream runs in order; between streams there is no order. A copy is over when an event that was
   recorded after it on its stream is done, and not before.
3. The copies of one batch run in any order. Sources are read in the order of the stream, never before work
   that was given to it earlier.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

__all__ = ["CudaFailed", "CudaUnavailable", "Device", "DeviceFound", "Driver"]

OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"


class CudaUnavailable(Exception):
    """There is no driver, no device, or not the device that was asked for. The message is for people."""


class CudaFailed(Exception):
    """A call that failed. `code` is the driver's name for it.

    `is_lost`: the device, or this process's context on it, is of no use any more: all later calls fail too.
    """

    def __init__(self, call: str, code: str, *, is_lost: bool = False) -> None:
        super().__init__(f"{call} failed with {code}")
        self.call = call
        self.code = code
        self.is_lost = is_lost

    @property
    def is_out_of_memory(self) -> bool:
        return self.code == OUT_OF_MEMORY


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFound:
    """`uuid`: as `nvidia-smi -L` has it, GPU-…; it means the same device in every process."""

    uuid: str
    name: str
    memory_bytes: int

    def __str__(self) -> str:
        return f"{self.uuid} ({self.name})"


class Device(Protocol):
    """One device, and this process's primary context on it, which torch uses too."""

    @property
    def uuid(self) -> str: ...

    @property
    def exports_fds(self) -> bool:
        """Whether its memory can be passed on as a file descriptor."""

    @property
    def copies_batches(self) -> bool:
        """Whether `copy_batch` can be used, with pinned memory too."""

    def current(self) -> AbstractContextManager[None]:
        """Makes its context the calling thread's, and what it was before again at the end."""

    def close(self) -> None:
        """Gives its context up. Outside of `current`, after all else."""

    def memory_free_bytes(self) -> int: ...

    def synchronize(self) -> None:
        """Waits for all work of this process on the device."""

    # --- Memory by virtual memory management: a range of addresses, and pages put there.

    def granularity_bytes(self) -> int:
        """Sizes of pages and ranges are multiples of it."""

    def reserve(self, size: int) -> int:
        """Addresses with nothing behind them."""

    def free_range(self, address: int, size: int) -> None: ...

    def create(self, size: int) -> int:
        """Pages, by a handle. They live until it is released and nobody maps them or holds a descriptor."""

    def release(self, handle: int) -> None: ...

    def map(self, address: int, size: int, handle: int) -> None: ...

    def unmap(self, address: int, size: int) -> None: ...

    def allow(self, address: int, size: int) -> None:
        """Lets this device read and write what is mapped there."""

    def export_fd(self, handle: int) -> int:
        """A file descriptor of the caller's own."""

    def import_fd(self, fd: int) -> int:
        """Another process's pages, by a handle. The descriptor stays the caller's."""

    # --- Memory the old way, where descriptors can't be had.

    def allocate(self, size: int) -> int: ...

    def free(self, address: int) -> None: ...

    def export_ipc(self, address: int) -> bytes: ...

    def open_ipc(self, handle: bytes) -> int:
        """Another process's memory; never this one's own."""

    def close_ipc(self, address: int) -> None: ...

    # --- Host memory.

    def pin(self, address: int, size: int) -> None:
        """Whole pages, which the device then copies to and from by itself. It may take a tenth of a second a
        GiB, and calls of other processes may wait for it."""

    def unpin(self, address: int) -> None: ...

    # --- Streams, events, copies.

    def make_stream(self) -> int: ...

    def destroy_stream(self, stream: int) -> None: ...

    def make_event(self) -> int: ...

    def destroy_event(self, event: int) -> None: ...

    def record(self, event: int, stream: int) -> None:
        """It is done when all is that was given to the stream so far."""

    def is_done(self, event: int) -> bool: ...

    def copy(self, target: int, source: int, size: int, stream: int) -> None:
        """Between host and device, or on the device; returns before it is over."""

    def copy_batch(
        self, targets: Sequence[int], sources: Sequence[int], sizes: Sequence[int], stream: int
    ) -> None:
        """Several copies as one call. Where it fails, some of them may be under way."""


class Driver(Protocol):
    def devices(self) -> Sequence[DeviceFound]:
        """Raises CudaUnavailable where there is no driver, or no device."""

    def open(self, uuid: str) -> Device:
        """Raises CudaUnavailable where there is none of that name."""
