"""How frames get from the GPU's pool to the CPU's and back, for either kind of GPU pool."""

from functools import partial

from kvstore.tiers.cuda_copies import CUDA_PIECE_BYTES, CUDA_THREADS, cuda_moves
from kvstore.tiers.cuda_pool import CudaPool
from kvstore.tiers.moves import Move, copy_frames
from kvstore.tiers.pool import HostPool

__all__ = ["GpuPool", "copy_moves", "piece_bytes", "thread_count"]

# Without a GPU the tier of that name is host memory.
GpuPool = HostPool | CudaPool

# A copy of this many bytes is over in a millisecond; what a mover does between two is some microseconds.
COPY_PIECE_BYTES = 4 << 20


def copy_moves(gpu: GpuPool, cpu: HostPool) -> tuple[Move, Move]:
    """Down and up."""
    if isinstance(gpu, CudaPool):
        return cuda_moves(gpu, cpu)
    return partial(copy_frames, gpu, cpu), partial(copy_frames, cpu, gpu)


def piece_bytes(gpu: GpuPool) -> int:
    """Of all ranks together. Devices move at once, so each is given as much as one would be alone."""
    return CUDA_PIECE_BYTES * gpu.ranks if isinstance(gpu, CudaPool) else COPY_PIECE_BYTES


def thread_count(gpu: GpuPool) -> int:
    """Of a mover: a device moves by itself, and threads only keep it busy."""
    return CUDA_THREADS if isinstance(gpu, CudaPool) else 1
