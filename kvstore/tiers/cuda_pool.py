"""The pool on GPUs: one memory a rank, on the device of that rank, cut into equal frames.

It has the surface of `HostPool` where that is asked; bytes on a device have addresses, though, and no arrays.
"""

import logging
import os
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Self

from kvstore.core.errors import CheckFailed, PoolUnavailable, check
from kvstore.cuda.driver import CudaFailed, Device
from kvstore.cuda.memory import DeviceMemory, round_up
from kvstore.tiers.cuda_thread import CudaThread, DeviceLost
from kvstore.tiers.pool import frame_stride_bytes

__all__ = ["CudaPool"]

CLOSE_SECONDS = 5.0

log = logging.getLogger(__name__)


class CudaPool:
    """`threads`: of the device of each rank. `option` is what an operator would turn down."""

    def __init__(
        self,
        name: str,
        frame_count: int,
        block_bytes: int,
        threads: Sequence[CudaThread],
        *,
        option: str = "",
    ) -> None:
        check(frame_count > 0, f"pool {name}: {frame_count} frames")
        check(block_bytes > 0, f"pool {name}: blocks of {block_bytes} bytes")
        check(threads, f"pool {name}: no device")
        self.name = name
        self.frame_count = frame_count
        self.block_bytes = block_bytes
        self.ranks = len(threads)
        self.stride_bytes = frame_stride_bytes(block_bytes)
        self.threads = tuple(threads)
        self._memories: list[DeviceMemory] = []
        option = option or f"the size of the {name} pool"
        try:
            for thread in threads:
                self._memories.append(self._make(thread, option))
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
        return sum(memory.size_bytes for memory in self._memories)

    @property
    def fds(self) -> tuple[int | None, ...]:
        """By rank; None: passed on by a handle. They belong to the pool; whoever sends one sends a copy."""
        return tuple(memory.fd for memory in self._memories)

    @property
    def ipc_handles(self) -> tuple[bytes, ...]:
        """By rank; empty: passed on by a descriptor."""
        return tuple(memory.ipc for memory in self._memories)

    @property
    def devices(self) -> tuple[str, ...]:
        """The UUID of each rank's."""
        return tuple(thread.uuid for thread in self.threads)

    @property
    def error(self) -> DeviceLost | None:
        """Why nothing can be copied any more."""
        return next((thread.error for thread in self.threads if thread.error is not None), None)

    def rank_bytes(self, rank: int) -> int:
        """Of the memory of this rank, rounded up to the pages of its device."""
        return self._memories[rank].size_bytes

    def address(self, rank: int) -> int:
        """Of frame 0, on the device of this rank; the others follow at `stride_bytes`."""
        check(self._memories, f"pool {self.name} is closed")
        return self._memories[rank].address

    def close(self) -> None:
        """Within a deadline: a driver that hangs keeps its memory, and nobody waits for it."""
        while self._memories:
            memory, thread = self._memories.pop(), self.threads[len(self._memories)]
            try:
                thread.call(partial(_close, memory), timeout=CLOSE_SECONDS)
            except TimeoutError:
                # It may be done later still, so nothing of it is anybody else's to close.
                log.warning("the %s pool's memory on %s: the driver hangs", self.name, thread.uuid)
            except (CheckFailed, CudaFailed) as error:
                log.warning("the %s pool's memory on %s is not given back: %s", self.name, thread.uuid, error)
                if memory.fd is not None:
                    os.close(memory.fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _make(self, thread: CudaThread, option: str) -> DeviceMemory:
        size = self.frame_count * self.stride_bytes

        def make(device: Device) -> DeviceMemory:
            """Looks first: a driver that is short may well put some of it elsewhere, or take very long."""
            granularity = free = 0
            try:
                granularity, free = device.granularity_bytes(), device.memory_free_bytes()
                if round_up(size, granularity) <= free:
                    return DeviceMemory.make(device, size)
            except CudaFailed as error:
                if error.is_lost:
                    raise
                raise self._unavailable(thread.uuid, size, free, granularity, option, str(error)) from error
            raise self._unavailable(thread.uuid, size, free, granularity, option, "too few")

        return thread.call(make)

    def _unavailable(
        self, uuid: str, size: int, free: int, granularity: int, option: str, why: str
    ) -> PoolUnavailable:
        """`granularity` 0: the driver did not even tell how much is free."""
        remedy = f"lower {option}, which is for all ranks together"
        if not granularity:
            known, remedy = "of which the driver tells nothing", "look at the device with nvidia-smi"
        else:
            size = round_up(size, granularity)
            known = f"in pages of {granularity}; {free} are free"
            if size > free:
                remedy += f"; at most {free // granularity * granularity * self.ranks} bytes would fit"
            else:
                remedy += "; another process may have taken what was free"
        return PoolUnavailable(
            f"the {self.name} pool asks for {size} bytes of {uuid}'s memory, {known}: {why}",
            field=option,
            value=size * self.ranks,
            remedy=remedy,
        )


def _close(memory: DeviceMemory, _: Device) -> None:
    memory.close()
