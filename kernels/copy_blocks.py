"""Whole blocks copied from frame to frame: what copy-on-write asks for.

A block is one run of bytes, so a copy knows nothing of layers or heads; what it moves at once are 16 bytes,
the most that a thread of a GPU can. Tests: tests/kernels/test_copy_blocks.py.
"""

import torch
import triton
import triton.language as tl

from kernels.checks import check_apart, check_int, check_tensor, refuse
from kernels.launch import Launch, runs_kernel

__all__ = ["check_memory", "copy_blocks", "copy_blocks_reference", "copy_run", "plan_copy_blocks"]

NAME = "copy_blocks"
ACCESS_BYTES = 16
# What one program copies: 8 accesses of each of 128 threads.
CHUNK_BYTES = 16384


def copy_blocks(memory: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor, block_bytes: int) -> None:
    """Copy the first `block_bytes` of frame `sources[i]` to frame `targets[i]`, for each i.

    memory            uint8[frames, at least block_bytes]: the pool, written in place. Frames begin at
                      multiples of 16 bytes.
    sources, targets  int64[pairs]: frames inside the pool. No target stands twice, and none is a source of
                      another pair: the order of the copies is not defined. A pair whose source is below 0 is
                      passed over, so that a graph of fixed size serves fewer pairs.
    block_bytes       a multiple of 16

    Nothing else of the pool changes. Raises KernelArgumentError.
    """
    check_memory(NAME, "memory", memory, block_bytes)
    for name, frames in (("sources", sources), ("targets", targets)):
        # Of the first any number, of the second as many.
        shape = (None,) if frames is sources else (len(sources),)
        check_tensor(
            NAME, name, frames, shape=shape, dtypes=(torch.int64,), device=memory.device, dense_axes=1
        )
    if runs_kernel(memory.device):
        plan_copy_blocks(memory, sources, targets, block_bytes).run()
    else:
        copy_blocks_reference(memory, sources, targets, block_bytes)


def copy_blocks_reference(
    memory: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor, block_bytes: int
) -> None:
    """The same in torch."""
    is_pair = sources >= 0
    blocks = memory[:, :block_bytes]
    blocks[targets[is_pair]] = blocks[sources[is_pair]]


def plan_copy_blocks(
    memory: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor, block_bytes: int
) -> Launch:
    """Programs by pair and by chunks of its block."""
    return Launch(
        kernel=_copy_blocks,
        grid=(len(sources), -(-block_bytes // CHUNK_BYTES)),
        arguments={
            "memory_ptr": memory[:, :block_bytes].view(torch.int32),
            "sources_ptr": sources,
            "targets_ptr": targets,
            "stride": memory.stride(0) // ACCESS_BYTES,
            "accesses": block_bytes // ACCESS_BYTES,
        },
        constants={"CHUNK": CHUNK_BYTES // 4},
    )


def check_memory(operation: str, name: str, memory: torch.Tensor, block_bytes: int) -> None:
    """A pool, or a staging extent, as rows of bytes: raises KernelArgumentError unless blocks fit into rows
    and can be moved 16 bytes at a time."""
    check_tensor(
        operation,
        name,
        memory,
        shape=(None, None),
        dtypes=(torch.uint8,),
        dense_axes=1,
    )
    check_int(operation, "block_bytes", block_bytes)
    if block_bytes < 1 or block_bytes % ACCESS_BYTES:
        wanted = f"a positive multiple of {ACCESS_BYTES}"
        raise refuse(operation, "block_bytes", block_bytes, wanted, "the layout's block_bytes")
    if block_bytes > memory.shape[1]:
        raise refuse(
            operation,
            "block_bytes",
            block_bytes,
            f"at most the {memory.shape[1]} of a row of {name}",
            "the memory of that layout",
        )
    if memory.stride(0) % ACCESS_BYTES or memory.data_ptr() % ACCESS_BYTES:
        raise refuse(
            operation,
            name,
            f"at address {memory.data_ptr()} with rows {memory.stride(0)} bytes apart",
            f"both a multiple of {ACCESS_BYTES}",
            "map or allocate it so; frames stand at a layout's frame_stride_bytes",
        )
    check_apart(operation, name, memory, 1)


@triton.jit
def copy_run(source_ptr, target_ptr, accesses, CHUNK: tl.constexpr):
    """This program's chunk of a run of `accesses` times 16 bytes; pointers to int32, whose run begins at a
    multiple of 16 bytes. Counted in accesses so that the compiler knows that none is cut in two."""
    words = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    is_there = words < accesses * 4
    tl.store(target_ptr + words, tl.load(source_ptr + words, mask=is_there), mask=is_there)


@triton.jit
def _copy_blocks(memory_ptr, sources_ptr, targets_ptr, stride, accesses, CHUNK: tl.constexpr):
    pair = tl.program_id(0).to(tl.int64)
    source = tl.load(sources_ptr + pair)
    target = tl.load(targets_ptr + pair)
    if source < 0:
        return
    # 64 bits, as frame numbers are: a pool has more words than 32 can count.
    copy_run(memory_ptr + source * stride * 4, memory_ptr + target * stride * 4, accesses, CHUNK)
