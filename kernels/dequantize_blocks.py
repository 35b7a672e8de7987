"""Quantised blocks on their way back from a colder tier.

From one staging extent into scattered frames of the pool: the way back of `kernels/quantize_blocks.py`.
Tests: tests/kernels/test_quantize_blocks.py.
"""

import torch
import triton
import triton.language as tl

from kernels.e4m3 import e4m3_to_fp32
from kernels.launch import Launch, runs_kernel
from kernels.quantize_blocks import check_staged, head_places, plan_by_head, scale_place, torch_type
from kernels.quantized_layout import QuantizedLayout

__all__ = ["dequantize_blocks", "dequantize_blocks_reference", "plan_dequantize_blocks"]


def dequantize_blocks(
    staging: torch.Tensor, frames: torch.Tensor, pool: torch.Tensor, layout: QuantizedLayout
) -> None:
    """Write the block that row i of the staging extent holds to frame `frames[i]`, for each i, all tokens.

    The way back of `quantize_blocks`. Frames that are written must be distinct; nothing else of the pool
    changes. Raises KernelArgumentError.
    """
    check_staged("dequantize_blocks", pool, frames, staging, layout)
    if runs_kernel(pool.device):
        plan_dequantize_blocks(staging, frames, pool, layout).run()
    else:
        dequantize_blocks_reference(staging, frames, pool, layout)


def dequantize_blocks_reference(
    staging: torch.Tensor, frames: torch.Tensor, pool: torch.Tensor, layout: QuantizedLayout
) -> None:
    """`dequantize_blocks` in torch."""
    is_block = frames >= 0
    values = layout.elements(staging)[is_block].view(torch_type(layout.quantization)).float()
    scales = layout.scales(staging)[is_block]
    pool[frames[is_block]] = (values * scales[:, :, :, None, :, None]).to(pool.dtype)


def plan_dequantize_blocks(
    staging: torch.Tensor, frames: torch.Tensor, pool: torch.Tensor, layout: QuantizedLayout
) -> Launch:
    """One program for each block, layer, side and head."""
    return plan_by_head(_dequantize, {}, pool, frames, staging, layout)


@triton.jit
def _dequantize(
    pool_ptr,
    frames_ptr,
    elements_ptr,
    scales_ptr,
    stride_frame,
    stride_staging,
    scales_offset,
    IS_FP8: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TOKENS: tl.constexpr,
    DIM: tl.constexpr,
):
    block = tl.program_id(0).to(tl.int64)
    frame = tl.load(frames_ptr + block)
    if frame < 0:
        return
    places, is_there = head_places(BLOCK_TOKENS, KV_HEADS, HEAD_DIM, TOKENS, DIM)
    scale = tl.load(scales_ptr + scale_place(block, stride_staging, scales_offset, KV_HEADS))
    codes = tl.load(elements_ptr + block * stride_staging + places, mask=is_there, other=0)
    if IS_FP8:
        values = e4m3_to_fp32(codes)
    else:
        values = codes.to(tl.int8, bitcast=True).to(tl.float32)
    values = (values * scale).to(pool_ptr.dtype.element_ty)
    tl.store(pool_ptr + frame * stride_frame + places, values, mask=is_there)
