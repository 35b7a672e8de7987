"""Frames copied between the pool on GPUs and the pool in host memory: a `Move` for COPY and one for LOAD.

By DMA only, on every rank at once. A piece is good when it is good on all ranks, and it has ended when
nothing of it is under way on any: until then its target frames may still be written, so it isn't told to have
failed.

Nothing here waits for the engine's kernels. What they may still write or read the core does not let move
before the engine's step has completed (fences): the frames of a piece are nobody else's until it ends.
"""

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from kvstore.core.errors import CheckFailed, check
from kvstore.cuda.driver import CudaFailed
from kvstore.tiers.cuda_pool import CudaPool
from kvstore.tiers.cuda_streams import Copies
from kvstore.tiers.cuda_thread import Direction
from kvstore.tiers.moves import Move, Part, PieceEnd, check_frames, frame_runs
from kvstore.tiers.pinning import PIECE_BYTES, frames_a_piece
from kvstore.tiers.pool import HostPool

__all__ = ["CUDA_PIECE_BYTES", "CUDA_THREADS", "cuda_moves"]

# More than one piece in a stream, so that it doesn't run dry while a mover looks at what has ended.
CUDA_THREADS = 3
CUDA_PIECE_BYTES = 8 << 20

log = logging.getLogger(__name__)

# Offsets in host memory and on the device, and bytes: the same on all ranks.
Span = tuple[int, int, int]


def cuda_moves(gpu: CudaPool, cpu: HostPool, *, pin_bytes: int = PIECE_BYTES) -> tuple[Move, Move]:
    """Down and up. `pin_bytes`: the pieces in which the host's memory is pinned (pinning.py)."""
    check(gpu.stride_bytes == cpu.stride_bytes, "pools with frames of different size")
    check(gpu.ranks == cpu.ranks, "pools with different ranks")
    pools = _Pools(gpu, cpu, frames_a_piece(cpu.stride_bytes, pin_bytes))
    return partial(_copy, pools, Direction.TO_HOST), partial(_copy, pools, Direction.TO_DEVICE)


@dataclass(frozen=True, slots=True)
class _Pools:
    gpu: CudaPool
    cpu: HostPool
    frames_a_piece: int


def _copy(pools: _Pools, direction: Direction, part: Part) -> PieceEnd:
    """Neighbours go as one copy, padding included; what a limit lets go at once goes as one batch."""
    is_down = direction is Direction.TO_HOST
    on_gpu, on_cpu = part.source_frames, part.target_frames
    if not is_down:
        on_gpu, on_cpu = on_cpu, on_gpu
    check_frames(pools.gpu, on_gpu)
    check_frames(pools.cpu, on_cpu)
    stride = pools.cpu.stride_bytes
    spans = [
        (host * stride, device * stride, count * stride)
        for host, device, count in _split(frame_runs(on_cpu, on_gpu), pools.frames_a_piece)
    ]
    seconds = 0.0
    for lot in _lots(spans, part, pools.gpu.ranks):
        copies = [_copies(pools, rank, direction, lot) for rank in range(pools.gpu.ranks)]
        futures = [
            thread.copy(direction, each) for thread, each in zip(pools.gpu.threads, copies, strict=True)
        ]
        took = _wait(futures)
        if took is None:
            return PieceEnd(failed=tuple(range(part.start, part.stop)))
        seconds += took
    return PieceEnd(seconds=seconds)


def _split(runs: Sequence[tuple[int, int, int]], frames_a_piece: int) -> Iterator[tuple[int, int, int]]:
    """Where one pinned piece of host memory ends and the next begins: a copy over both may be refused."""
    for host, device, count in runs:
        while count:
            some = min(count, frames_a_piece - host % frames_a_piece)
            yield host, device, some
            host, device, count = host + some, device + some, count - some


def _lots(spans: list[Span], part: Part, ranks: int) -> Iterator[list[Span]]:
    """All at once, or under a limit what it lets go at once, which may be less than a frame."""
    if not part.bucket.quantum_bytes:
        yield spans
        return
    for host, device, size in spans:
        done = 0
        while done < size:
            # Asked for each: the limit may change in between.
            quantum = part.bucket.quantum_bytes // ranks or size
            lot = min(max(quantum, 1), size - done)
            part.bucket.pace(lot * ranks)
            yield [(host + done, device + done, lot)]
            done += lot


def _copies(pools: _Pools, rank: int, direction: Direction, spans: Sequence[Span]) -> Copies:
    hosts = [pools.cpu.address(rank) + host for host, _, _ in spans]
    devices = [pools.gpu.address(rank) + device for _, device, _ in spans]
    sizes = [size for _, _, size in spans]
    if direction is Direction.TO_HOST:
        return Copies(targets=hosts, sources=devices, sizes=sizes)
    return Copies(targets=devices, sources=hosts, sizes=sizes)


def _wait(futures: Sequence[Future[float]]) -> float | None:
    """For all ranks, whatever becomes of one. Seconds of the slowest; None: one has failed."""
    errors: list[Exception] = []
    seconds = 0.0
    for future in futures:
        try:
            seconds = max(seconds, future.result())
        except (CudaFailed, CheckFailed) as error:
            errors.append(error)
    for found in errors:
        if isinstance(found, CheckFailed):
            raise found
        log.warning("a copy failed: %s", found)
    return None if errors else seconds
