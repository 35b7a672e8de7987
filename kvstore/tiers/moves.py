"""What a mover does with a piece of a transfer: copy frames, write blocks to disk, read them from it.

Each function does blocks `start` to `stop` and returns the positions in the transfer that failed. One that
raises has failed with its whole piece; what it has written into target frames by then means nothing, since
nobody reads a frame before its transfer has ended well.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvstore.core.effects import (
    BlocksUsed,
    DiskDelete,
    DiskSync,
    SessionsForgotten,
    SessionsKept,
    Transfer,
)
from kvstore.core.errors import check
from kvstore.core.types import Frame, StoredKey, SyncId
from kvstore.tiers.disk import DiskTier, DiskWriteFailed, ReadOutcome
from kvstore.tiers.disk_tickets import Ticket
from kvstore.tiers.pacing import Clock, TokenBucket
from kvstore.tiers.pool import HostPool
from kvstore.tiers.turns import Told

__all__ = [
    "Move",
    "Part",
    "PieceEnd",
    "Synced",
    "block_count",
    "check_frames",
    "copy_frames",
    "frame_runs",
    "read_blocks",
    "tell_disk",
    "write_blocks",
]

log = logging.getLogger(__name__)

# A question to the disk is answered: whether anything is not durable yet. Called in a mover's thread.
Synced = Callable[[SyncId, bool], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Blocks `start` to `stop` of a transfer, and how to go about them.

    `bucket` is asked before anything moves; `returned` is called with late positions that came back, by any
    thread and at any time. `ticket` is the transfer's place among the writes; the mover ends it.
    """

    transfer: Transfer
    start: int
    stop: int
    bucket: TokenBucket
    clock: Clock
    returned: Callable[[int], None]
    ticket: Ticket | None = None

    @property
    def source_frames(self) -> Sequence[Frame]:
        return self.transfer.source_frames[self.start : self.stop]

    @property
    def target_frames(self) -> Sequence[Frame]:
        return self.transfer.target_frames[self.start : self.stop]

    @property
    def keys(self) -> Sequence[StoredKey]:
        return self.transfer.keys[self.start : self.stop]


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceEnd:
    """`late` positions failed too, and their target frames may still be written.

    `seconds`: what the moving took, without waits for a limit; 0 where that can't be told.
    """

    failed: tuple[int, ...] = ()
    late: tuple[int, ...] = ()
    seconds: float = 0.0


Move = Callable[[Part], PieceEnd]
Frames = NDArray[np.uint8]
Run = tuple[int, int, int]


class Framed(Protocol):
    """A pool, wherever its bytes are."""

    @property
    def name(self) -> str: ...

    @property
    def frame_count(self) -> int: ...


def block_count(transfer: Transfer) -> int:
    return max(len(transfer.source_frames), len(transfer.target_frames), len(transfer.keys))


def copy_frames(source: HostPool, target: HostPool, part: Part) -> PieceEnd:
    """Neighbours go as one copy, padding included; numpy lets other threads run while it copies."""
    sources, targets = part.source_frames, part.target_frames
    check_frames(source, sources)
    check_frames(target, targets)
    check(source.stride_bytes == target.stride_bytes, "pools with frames of different size")
    check(source.ranks == target.ranks, "pools with different ranks")
    runs = frame_runs(sources, targets)
    # A limit that is set meanwhile holds from the next piece on.
    copy = _copy_paced if part.bucket.quantum_bytes else _copy
    seconds = sum(copy(source.frames(rank), target.frames(rank), runs, part) for rank in range(source.ranks))
    return PieceEnd(seconds=seconds)


def _copy(from_: Frames, to: Frames, runs: Sequence[Run], part: Part) -> float:
    """Returns how long the copying took."""
    began = part.clock.now()
    for source, target, count in runs:
        to[target : target + count] = from_[source : source + count]
    return part.clock.now() - began


def _copy_paced(from_: Frames, to: Frames, runs: Sequence[Run], part: Part) -> float:
    """In lots that the limit lets go at once, which may be less than a frame."""
    bucket, clock, stride = part.bucket, part.clock, from_.shape[1]
    from_, to = from_.reshape(-1), to.reshape(-1)
    seconds = 0.0
    for source, target, count in runs:
        done, size = 0, count * stride
        while done < size:
            # Asked for each: the limit may change in between.
            lot = min(bucket.quantum_bytes or size, size - done)
            bucket.pace(lot)
            began = clock.now()
            at, begin = target * stride + done, source * stride + done
            to[at : at + lot] = from_[begin : begin + lot]
            seconds += clock.now() - began
            done += lot
    return seconds


def frame_runs(source: Sequence[Frame], target: Sequence[Frame]) -> list[Run]:
    """Source, target and length of each run in which both sides go up by one."""
    check(len(source) == len(target), f"{len(source)} frames to copy to {len(target)}")
    runs: list[Run] = []
    begin = (-1, -1)
    count = 0
    for pair in zip(source, target, strict=True):
        if count and pair == (begin[0] + count, begin[1] + count):
            count += 1
            continue
        if count:
            runs.append((*begin, count))
        begin, count = pair, 1
    if count:
        runs.append((*begin, count))
    return runs


def write_blocks(cpu: HostPool, disk: DiskTier, part: Part) -> PieceEnd:
    """All or none of the piece, durably: under a slow limit by several batches, which are taken back where
    one fails."""
    frames, keys, bucket, clock = part.source_frames, part.keys, part.bucket, part.clock
    check_frames(cpu, frames)
    check(len(keys) == len(frames), "a key for each frame")
    payloads = [[place.data for place in _places(cpu, frame)] for frame in frames]
    waited, began = bucket.waited_seconds, clock.now()
    done = 0
    try:
        while done < len(keys):
            # Asked for each: the limit may change in between.
            lot = slice(done, done + _blocks_at_once(cpu, bucket, len(keys)))
            disk.write(keys[lot], payloads[lot], pace=bucket.pace, ticket=part.ticket)
            done = min(lot.stop, len(keys))
    except DiskWriteFailed as error:
        log.info("transfer %d isn't on disk: %s", part.transfer.id, error)
        if done:
            disk.delete(keys[:done])
        return PieceEnd(failed=tuple(range(part.start, part.stop)))
    return PieceEnd(seconds=_without_waits(clock.now() - began, bucket.waited_seconds - waited))


def read_blocks(disk: DiskTier, cpu: HostPool, part: Part) -> PieceEnd:
    frames, keys, bucket, clock = part.target_frames, part.keys, part.bucket, part.clock
    check_frames(cpu, frames)
    check(len(keys) == len(frames), "a key for each frame")
    waited, began = bucket.waited_seconds, clock.now()
    failed: list[int] = []
    late: list[int] = []
    done = 0
    while done < len(keys):
        lot = slice(done, done + _blocks_at_once(cpu, bucket, len(keys)))
        first = part.start + done
        outcomes = disk.read(
            keys[lot],
            [_places(cpu, frame) for frame in frames[lot]],
            pace=bucket.pace,
            returned=partial(_came_back, part, first),
        )
        failed += [first + place for place, outcome in enumerate(outcomes) if outcome is not ReadOutcome.GOOD]
        late += [first + place for place, outcome in enumerate(outcomes) if outcome is ReadOutcome.LATE]
        done = min(lot.stop, len(keys))
    seconds = _without_waits(clock.now() - began, bucket.waited_seconds - waited)
    return PieceEnd(failed=tuple(failed), late=tuple(late), seconds=seconds)


def tell_disk(disk: DiskTier, synced: Synced, told: Told) -> None:
    """What fails of it the disk makes up for by itself, but for notes, which are only advice."""
    match told:
        case DiskDelete():
            disk.delete(told.keys)
        case SessionsKept():
            disk.keep_sessions(told.sessions)
        case SessionsForgotten():
            disk.forget_sessions(told.sessions)
        case BlocksUsed():
            disk.note_uses(told.keys)
        case DiskSync():
            synced(told.sync, not disk.settle())


def _came_back(part: Part, first: int, place: int) -> None:
    part.returned(first + place)


def _places(pool: HostPool, frame: Frame) -> list[NDArray[np.uint8]]:
    """With what pads them: so the disk moves them as they lie."""
    return [pool.frames(rank)[frame] for rank in range(pool.ranks)]


def _blocks_at_once(pool: HostPool, bucket: TokenBucket, most: int) -> int:
    """The disk moves neighbours as one, which a slow limit would see as a jump."""
    quantum = bucket.quantum_bytes
    return max(1, quantum // pool.frame_bytes) if quantum else most


def _without_waits(seconds: float, waited: float) -> float:
    """The disk moves several blocks at once: with waits among them it can't be told what moving took."""
    return 0.0 if waited else seconds


def check_frames(pool: Framed, frames: Sequence[Frame]) -> None:
    """numpy takes frames below zero and cuts slices off without a word."""
    if frames:
        inside = min(frames) >= 0 and max(frames) < pool.frame_count
        check(inside, f"frames outside of the {pool.name} pool")
