"""The pools of the tiers, made with the first Attach, for its layout.

Configured bytes become frames here: a frame stands on every rank, at a stride of whole pages. Want of
memory is tried again for a while, for an engine of the service before may still hold its pools.
"""

import asyncio
import logging
from contextlib import ExitStack
from dataclasses import dataclass

from kvstore.core.errors import FieldInvalid, PoolUnavailable
from kvstore.server.clock import now
from kvstore.server.config import ServeConfig
from kvstore.server.gpus import Gpus
from kvstore.server.layout import Layout
from kvstore.server.sizes import format_bytes
from kvstore.tiers.copying import GpuPool
from kvstore.tiers.cuda_pool import CudaPool
from kvstore.tiers.disk import DiskTier
from kvstore.tiers.pinning import Pinning
from kvstore.tiers.pool import HostPool, frame_stride_bytes

__all__ = ["FrameCounts", "Pools", "count_frames", "frame_bytes", "make_pools"]

TRY_SECONDS = 10.0
PAUSE_SECONDS = 0.25

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameCounts:
    """0: no such tier."""

    gpu: int
    cpu: int
    disk: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """`pinning`: of the CPU's, where there is a GPU that copies to and from it."""

    gpu: GpuPool
    cpu: HostPool | None
    pinning: Pinning | None = None

    def close(self) -> None:
        """May wait for a driver, within its deadlines."""
        if self.pinning is not None:
            self.pinning.close()
        self.gpu.close()
        if self.cpu is not None:
            self.cpu.close()


def frame_bytes(layout: Layout) -> int:
    """Of a block in a pool, on all ranks."""
    return frame_stride_bytes(layout.block_bytes) * layout.ranks


def count_frames(
    config: ServeConfig, layout: Layout, disk: DiskTier | None, gpus: Gpus | None = None
) -> FrameCounts:
    """Refuses a layout of which not one block fits a tier that was asked for, or that has other ranks than
    there are GPUs."""
    size = frame_bytes(layout)
    gpu_bytes = config.gpu_bytes
    if gpus is not None:
        gpus.check_ranks(layout.ranks)
        gpu_bytes = gpus.rank_bytes(config.gpu_bytes) * layout.ranks
    counts = FrameCounts(
        gpu=gpu_bytes // size,
        cpu=config.cpu_bytes // size,
        disk=disk.capacity_blocks(layout.block_bytes, layout.ranks) if disk is not None else 0,
    )
    tiers = (
        ("--gpu", config.gpu_bytes, counts.gpu),
        ("--cpu", config.cpu_bytes, counts.cpu),
        ("--disk-bytes", config.disk_bytes, counts.disk),
    )
    for flag, asked, count in tiers:
        if asked and not count:
            pages = (
                f", in multiples of {gpus.granularity_bytes} on each GPU" if gpus and flag == "--gpu" else ""
            )
            raise FieldInvalid(
                f"a frame is {size} bytes, and {flag} is {asked}{pages}",
                field="layout.block_bytes",
                value=layout.block_bytes,
                remedy=f"start the service with a larger {flag}",
            )
    return counts


async def make_pools(layout: Layout, frames: FrameCounts, gpus: Gpus | None = None) -> Pools:
    end = now() + TRY_SECONDS
    while True:
        try:
            # In a thread: to allocate gigabytes of pages takes seconds.
            return await asyncio.to_thread(_make_pools, layout, frames, gpus)
        except PoolUnavailable as error:
            if now() >= end:
                raise _unavailable(error) from error
            log.info("no memory for the pools yet: %s", error)
        await asyncio.sleep(PAUSE_SECONDS)


def _make_pools(layout: Layout, frames: FrameCounts, gpus: Gpus | None) -> Pools:
    with ExitStack() as undo:
        gpu = _make_gpu(layout, frames.gpu, gpus)
        undo.callback(gpu.close)
        cpu = undo.enter_context(_make_cpu(layout, frames.cpu)) if frames.cpu else None
        pinning = None
        if isinstance(gpu, CudaPool) and cpu is not None:
            pinning = Pinning(cpu, gpu.threads, option="--cpu")
            undo.callback(pinning.close)
            pinning.start()
        undo.pop_all()
    log.info("made pools of %s", format_bytes(gpu.size_bytes + (cpu.size_bytes if cpu else 0)))
    return Pools(gpu=gpu, cpu=cpu, pinning=pinning)


def _make_gpu(layout: Layout, frames: int, gpus: Gpus | None) -> GpuPool:
    if gpus is not None:
        return CudaPool("gpu", frames, layout.block_bytes, gpus.threads, option="--gpu")
    return HostPool("gpu", frames, layout.block_bytes, layout.ranks, option="--gpu")


def _make_cpu(layout: Layout, frames: int) -> HostPool:
    return HostPool("cpu", frames, layout.block_bytes, layout.ranks, option="--cpu")


def _unavailable(error: PoolUnavailable) -> PoolUnavailable:
    return PoolUnavailable(
        f"{error.message}; tried for {TRY_SECONDS:g} seconds",
        field=error.field,
        value=error.value,
        remedy=f"end engines of an earlier service, which may still hold its memory, or {error.remedy}",
    )
