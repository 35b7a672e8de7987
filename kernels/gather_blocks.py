"""Scattered blocks to and from one staging extent.

A small block is too little for a copy of its own over PCIe or to a disk. Gathered into one extent, many move
as one, and are scattered where they arrive. Tests: tests/kernels/test_gather_blocks.py.
"""

import torch
import triton
import triton.language as tl

from kernels.checks import check_tensor
from kernels.copy_blocks import ACCESS_BYTES, CHUNK_BYTES, check_memory, copy_run
from kernels.launch import Launch, runs_kernel

__all__ = [
    "gather_blocks",
    "gather_blocks_reference",
    "plan_gather_blocks",
    "plan_scatter_blocks",
    "scatter_blocks",
    "scatter_blocks_reference",
]


def gather_blocks(
    memory: torch.Tensor, frames: torch.Tensor, staging: torch.Tensor, block_bytes: int
) -> None:
    """Copy the first `block_bytes` of frame `frames[i]` to row i of the staging extent, for each i.

    memory       uint8[frames, at least block_bytes]: the pool. Frames begin at multiples of 16 bytes.
    frames       int64[blocks]: frames inside the pool. One below 0 is passed over, its row stays as it is.
    staging      uint8[blocks, at least block_bytes], written in place; rows begin at multiples of 16 bytes
    block_bytes  a multiple of 16

    Nothing else of the extent changes. Raises KernelArgumentError.
    """
    _check("gather_blocks", memory, frames, staging, block_bytes)
    if runs_kernel(memory.device):
        plan_gather_blocks(memory, frames, staging, block_bytes).run()
    else:
        gather_blocks_reference(memory, frames, staging, block_bytes)


def scatter_blocks(
    staging: torch.Tensor, frames: torch.Tensor, memory: torch.Tensor, block_bytes: int
) -> None:
    """Copy row i of the staging extent to frame `frames[i]`, for each i: the way back of `gather_blocks`.

    Frames that are written must be distinct. Nothing else of the pool changes. Raises KernelArgumentError.
    """
    _check("scatter_blocks", memory, frames, staging, block_bytes)
    if runs_kernel(memory.device):
        plan_scatter_blocks(staging, frames, memory, block_bytes).run()
    else:
        scatter_blocks_reference(staging, frames, memory, block_bytes)


def gather_blocks_reference(
    memory: torch.Tensor, frames: torch.Tensor, staging: torch.Tensor, block_bytes: int
) -> None:
    """`gather_blocks` in torch."""
    is_block = frames >= 0
    staging[is_block, :block_bytes] = memory[frames[is_block], :block_bytes]


def scatter_blocks_reference(
    staging: torch.Tensor, frames: torch.Tensor, memory: torch.Tensor, block_bytes: int
) -> None:
    """`scatter_blocks` in torch."""
    is_block = frames >= 0
    memory[frames[is_block], :block_bytes] = staging[is_block, :block_bytes]


def plan_gather_blocks(
    memory: torch.Tensor, frames: torch.Tensor, staging: torch.Tensor, block_bytes: int
) -> Launch:
    """Programs by block and by chunks of it."""
    return _plan(memory, frames, staging, block_bytes, is_gathered=True)


def plan_scatter_blocks(
    staging: torch.Tensor, frames: torch.Tensor, memory: torch.Tensor, block_bytes: int
) -> Launch:
    """Programs by block and by chunks of it."""
    return _plan(memory, frames, staging, block_bytes, is_gathered=False)


def _plan(
    memory: torch.Tensor, frames: torch.Tensor, staging: torch.Tensor, block_bytes: int, *, is_gathered: bool
) -> Launch:
    return Launch(
        kernel=_move_blocks,
        grid=(len(frames), -(-block_bytes // CHUNK_BYTES)),
        arguments={
            "memory_ptr": memory[:, :block_bytes].view(torch.int32),
            "frames_ptr": frames,
            "staging_ptr": staging[:, :block_bytes].view(torch.int32),
            "stride_memory": memory.stride(0) // ACCESS_BYTES,
            "stride_staging": staging.stride(0) // ACCESS_BYTES,
            "accesses": block_bytes // ACCESS_BYTES,
        },
        constants={"IS_GATHERED": is_gathered, "CHUNK": CHUNK_BYTES // 4},
    )


@triton.jit
def _move_blocks(
    memory_ptr,
    frames_ptr,
    staging_ptr,
    stride_memory,
    stride_staging,
    accesses,
    IS_GATHERED: tl.constexpr,
    CHUNK: tl.constexpr,
):
    block = tl.program_id(0).to(tl.int64)
    frame = tl.load(frames_ptr + block)
    if frame < 0:
        return
    # 64 bits, as frame numbers are: a pool has more words than 32 can count.
    in_pool = memory_ptr + frame * stride_memory * 4
    in_staging = staging_ptr + block * stride_staging * 4
    if IS_GATHERED:
        copy_run(in_pool, in_staging, accesses, CHUNK)
    else:
        copy_run(in_staging, in_pool, accesses, CHUNK)


def _check(
    operation: str, memory: torch.Tensor, frames: torch.Tensor, staging: torch.Tensor, block_bytes: int
) -> None:
    check_memory(operation, "memory", memory, block_bytes)
    device = memory.device
    check_tensor(
        operation, "frames", frames, shape=(None,), dtypes=(torch.int64,), device=device, dense_axes=1
    )
    check_tensor(
        operation,
        "staging",
        staging,
        shape=(len(frames), None),
        dtypes=(torch.uint8,),
        device=device,
        dense_axes=1,
    )
    check_memory(operation, "staging", staging, block_bytes)
