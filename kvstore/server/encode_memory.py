"""What memory the pools are, as part of the contract's Usage."""

from kvstore.core.types import Tier
from kvstore.server.gpus import Gpus
from kvstore.server.pools import Pools
from kvstore.tiers.cuda_pool import CudaPool
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["fill_handle", "fill_memory"]


def fill_handle(handle: pb.PoolHandle, gpu: CudaPool) -> None:
    """How the memory of its rank is mapped."""
    rank = handle.rank
    uuid = gpu.devices[rank]
    if gpu.fds[rank] is None:
        handle.cuda_ipc.handle = gpu.ipc_handles[rank]
        handle.cuda_ipc.size_bytes, handle.cuda_ipc.device_uuid = gpu.rank_bytes(rank), uuid
    else:
        handle.cuda.fd_index = 0
        handle.cuda.size_bytes, handle.cuda.device_uuid = gpu.rank_bytes(rank), uuid


def fill_memory(message: pb.TierUsage, tier: Tier, pools: Pools | None, gpus: Gpus | None) -> None:
    if tier is Tier.GPU and gpus is not None:
        message.device_uuids.extend(thread.uuid for thread in gpus.threads)
        message.copy_stalled_seconds = gpus.stalled_seconds
    if pools is None or tier is Tier.DISK:
        return
    message.memory_kind = pb.MEMORY_KIND_HOST
    if tier is Tier.GPU and isinstance(pools.gpu, CudaPool):
        by_handle = pools.gpu.fds[0] is None
        message.memory_kind = pb.MEMORY_KIND_CUDA_IPC if by_handle else pb.MEMORY_KIND_CUDA
    if tier is Tier.CPU and pools.pinning is not None:
        message.bytes_pinned = pools.pinning.pinned_bytes
        message.pinning_problem = pools.pinning.problem
