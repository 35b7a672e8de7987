"""What a link does with a transfer: copy frames, write blocks to disk, read them from it.

Each function returns the positions in the transfer that failed. One that raises has failed whole; what
it has written into its target frames by then means nothing, since nobody reads a frame before its
transfer has ended well.
"""

import logging
import queue
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kvstore.core.effects import DiskDelete, Transfer
from kvstore.core.errors import check
from kvstore.core.types import Frame
from kvstore.tiers.disk import DiskTier, DiskWriteFailed, ReadOutcome
from kvstore.tiers.pool import HostPool

__all__ = ["all_positions", "copy_frames", "delete_blocks", "frame_runs", "read_blocks", "write_blocks"]

log = logging.getLogger(__name__)


def all_positions(transfer: Transfer) -> tuple[int, ...]:
    return tuple(range(max(len(transfer.source_frames), len(transfer.target_frames), len(transfer.keys))))


def copy_frames(source: HostPool, target: HostPool, transfer: Transfer) -> tuple[int, ...]:
    """Neighbours go as one copy, padding included; numpy lets other threads run while it copies."""
    _check_frames(source, transfer.source_frames)
    _check_frames(target, transfer.target_frames)
    check(source.stride_bytes == target.stride_bytes, "pools with frames of different size")
    check(source.ranks == target.ranks, "pools with different ranks")
    runs = list(frame_runs(transfer.source_frames, transfer.target_frames))
    for rank in range(source.ranks):
        from_, to = source.frames(rank), target.frames(rank)
        for source_start, target_start, count in runs:
            to[target_start : target_start + count] = from_[source_start : source_start + count]
    return ()


def frame_runs(source: Sequence[Frame], target: Sequence[Frame]) -> Iterator[tuple[int, int, int]]:
    """Source, target and length of each run in which both sides go up by one."""
    check(len(source) == len(target), f"{len(source)} frames to copy to {len(target)}")
    pairs = np.array([source, target], dtype=np.int64)
    breaks = np.flatnonzero((np.diff(pairs) != 1).any(axis=0)) + 1
    starts = [0, *breaks.tolist(), len(source)]
    for start, end in pairwise(starts):
        if start < end:
            yield int(source[start]), int(target[start]), end - start


def write_blocks(cpu: HostPool, disk: DiskTier, transfer: Transfer) -> tuple[int, ...]:
    _check_frames(cpu, transfer.source_frames)
    check(len(transfer.keys) == len(transfer.source_frames), "a key for each frame")
    payloads = [[part.data for part in _parts(cpu, frame)] for frame in transfer.source_frames]
    try:
        disk.write(transfer.keys, payloads)
    except DiskWriteFailed as error:
        log.info("transfer %d isn't on disk: %s", transfer.id, error)
        return all_positions(transfer)
    return ()


def read_blocks(disk: DiskTier, cpu: HostPool, transfer: Transfer) -> tuple[int, ...]:
    _check_frames(cpu, transfer.target_frames)
    check(len(transfer.keys) == len(transfer.target_frames), "a key for each frame")
    frames = [_parts(cpu, frame) for frame in transfer.target_frames]
    back: queue.SimpleQueue[int] = queue.SimpleQueue()
    outcomes = disk.read(transfer.keys, frames, returned=back.put)
    # The device may still write to their frames, which are free again once this transfer has ended.
    for _ in range(outcomes.count(ReadOutcome.LATE)):
        back.get()
    return tuple(place for place, outcome in enumerate(outcomes) if outcome is not ReadOutcome.GOOD)


def delete_blocks(disk: DiskTier, delete: DiskDelete) -> None:
    disk.delete(delete.keys)


def _parts(pool: HostPool, frame: Frame) -> list[NDArray[np.uint8]]:
    """With what pads them: so the disk moves them as they lie."""
    return [pool.frames(rank)[frame] for rank in range(pool.ranks)]


def _check_frames(pool: HostPool, frames: Sequence[Frame]) -> None:
    """numpy takes frames below zero and cuts slices off without a word."""
    if frames:
        inside = min(frames) >= 0 and max(frames) < pool.frame_count
        check(inside, f"frames outside of the {pool.name} pool")
