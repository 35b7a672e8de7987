"""Blocks quantised on their way to a colder tier.

From scattered frames of the pool into one staging extent; what lies where and how much is lost says
`kernels/quantized_layout.py`. Kernels and references round alike, to nearest and ties to even, and FP8 is
made with integers, so that it is the same on GPUs that don't know the type. Tests:
tests/kernels/test_quantize_blocks.py.
"""

import torch
import triton
import triton.language as tl

from kernels.checks import INDEX_TYPES, KV_TYPES, check_apart, check_is, check_tensor
from kernels.copy_blocks import check_memory
from kernels.e4m3 import fp32_to_e4m3
from kernels.launch import Arguments, Launch, next_power_of_2, runs_kernel
from kernels.quantized_layout import SCALE_MIN, Quantization, QuantizedLayout

__all__ = [
    "check_staged",
    "head_places",
    "plan_by_head",
    "plan_quantize_blocks",
    "quantize_blocks",
    "quantize_blocks_reference",
    "scale_place",
    "torch_type",
]

# Added to a number below 2^22 it leaves the nearest integer in the lowest bits: 1.5 * 2^23.
ROUNDER = tl.constexpr(12582912.0)


def quantize_blocks(
    pool: torch.Tensor,
    frames: torch.Tensor,
    filled_tokens: torch.Tensor,
    staging: torch.Tensor,
    layout: QuantizedLayout,
) -> None:
    """Quantise the block of frame `frames[i]` into row i of the staging extent, for each i.

    pool           `layout.source.view` of the mapped memory,
                   dtype[frames, layers, 2, block_tokens, kv_heads, head_dim]
    frames         int64[blocks]: frames inside the pool. One below 0 is passed over, its row stays as it is.
    filled_tokens  int32 or int64 [blocks]: tokens of each block that count; what lies behind them, which may
                   be NaN, becomes 0
    staging        uint8[blocks, at least layout.block_bytes], written in place
    Raises KernelArgumentError.
    """
    check_staged("quantize_blocks", pool, frames, staging, layout)
    check_tensor(
        "quantize_blocks",
        "filled_tokens",
        filled_tokens,
        shape=(len(frames),),
        dtypes=INDEX_TYPES,
        device=pool.device,
        dense_axes=1,
    )
    if runs_kernel(pool.device):
        plan_quantize_blocks(pool, frames, filled_tokens, staging, layout).run()
    else:
        quantize_blocks_reference(pool, frames, filled_tokens, staging, layout)


def quantize_blocks_reference(
    pool: torch.Tensor,
    frames: torch.Tensor,
    filled_tokens: torch.Tensor,
    staging: torch.Tensor,
    layout: QuantizedLayout,
) -> None:
    """`quantize_blocks` in torch."""
    is_block = frames >= 0
    values = pool[frames[is_block]].float()
    is_behind = torch.arange(layout.source.block_tokens, device=pool.device) >= filled_tokens[is_block, None]
    values = values.masked_fill_(is_behind[:, None, None, :, None, None], 0.0)
    # [blocks, layers, 2, 1, kv_heads, 1]
    largest = values.abs().amax(dim=(3, 5), keepdim=True)
    scales = (largest * (1 / layout.quantization.largest)).clamp_min_(SCALE_MIN)
    is_finite = largest < torch.inf
    scaled = torch.where(is_finite, values * (1 / scales), 0.0)
    kind = torch_type(layout.quantization)
    if kind is torch.int8:
        scaled = scaled.round_()
    layout.elements(staging)[is_block] = scaled.to(kind).view(torch.uint8)
    layout.scales(staging)[is_block] = torch.where(is_finite, scales, torch.nan)[:, :, :, 0, :, 0]


def plan_quantize_blocks(
    pool: torch.Tensor,
    frames: torch.Tensor,
    filled_tokens: torch.Tensor,
    staging: torch.Tensor,
    layout: QuantizedLayout,
) -> Launch:
    """One program for each block, layer, side and head: for each scale."""
    arguments: Arguments = {
        "filled_ptr": filled_tokens,
        "largest": layout.quantization.largest,
        "scale_min": SCALE_MIN,
    }
    return plan_by_head(_quantize, arguments, pool, frames, staging, layout)


def torch_type(quantization: Quantization) -> torch.dtype:
    """What an element's byte is."""
    return torch.float8_e4m3fn if quantization is Quantization.FP8 else torch.int8


def plan_by_head(
    kernel: object,
    arguments: Arguments,
    pool: torch.Tensor,
    frames: torch.Tensor,
    staging: torch.Tensor,
    layout: QuantizedLayout,
) -> Launch:
    """One program for each block, layer, side and head, for quantising and back."""
    source = layout.source
    dim = next_power_of_2(source.head_dim)
    elements = next_power_of_2(source.block_tokens) * dim
    return Launch(
        kernel=kernel,
        grid=(len(frames), source.layers * 2, source.kv_heads),
        arguments=arguments
        | {
            "pool_ptr": pool,
            "frames_ptr": frames,
            "elements_ptr": staging,
            "scales_ptr": staging[:, : layout.block_bytes].view(torch.float32),
            "stride_frame": pool.stride(0),
            "stride_staging": staging.stride(0),
            "scales_offset": layout.scales_offset,
        },
        constants={
            "IS_FP8": layout.quantization is Quantization.FP8,
            "BLOCK_TOKENS": source.block_tokens,
            "KV_HEADS": source.kv_heads,
            "HEAD_DIM": source.head_dim,
            "TOKENS": next_power_of_2(source.block_tokens),
            "DIM": dim,
        },
        # 16 elements of each thread are 16 bytes of the staging extent.
        warps=min(8, max(1, elements // 512)),
        fuses=False,
    )


@triton.jit
def head_places(
    BLOCK_TOKENS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TOKENS: tl.constexpr,
    DIM: tl.constexpr,
):
    """Where this program's head lies in a block, counted in elements, and which of these are there."""
    tokens, dims = tl.arange(0, TOKENS), tl.arange(0, DIM)
    first = (tl.program_id(1).to(tl.int64) * BLOCK_TOKENS * KV_HEADS + tl.program_id(2)) * HEAD_DIM
    is_there = (tokens[:, None] < BLOCK_TOKENS) & (dims[None, :] < HEAD_DIM)
    return first + tokens[:, None] * (KV_HEADS * HEAD_DIM) + dims[None, :], is_there


@triton.jit
def scale_place(block, stride_staging, scales_offset, KV_HEADS: tl.constexpr):
    """Where the scale of this program's head stands in the staging extent, counted in scales."""
    first = (block * stride_staging + scales_offset) // 4
    return first + tl.program_id(1) * KV_HEADS + tl.program_id(2)


@triton.jit
def _quantize(
    pool_ptr,
    frames_ptr,
    filled_ptr,
    elements_ptr,
    scales_ptr,
    stride_frame,
    stride_staging,
    scales_offset,
    largest,
    scale_min,
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
    filled = tl.load(filled_ptr + block)
    places, is_there = head_places(BLOCK_TOKENS, KV_HEADS, HEAD_DIM, TOKENS, DIM)
    is_filled = is_there & (tl.arange(0, TOKENS)[:, None] < filled)
    values = tl.load(pool_ptr + frame * stride_frame + places, mask=is_filled, other=0.0).to(tl.float32)
    # A maximum passes over NaN, so that is made infinite first.
    sizes = tl.where(values == values, tl.abs(values), float("inf"))
    size_max = tl.max(tl.max(sizes, axis=1), axis=0)
    is_finite = size_max < float("inf")
    scale = tl.maximum(size_max * tl.div_rn(1.0, largest), scale_min)
    scaled = tl.where(is_finite, values * tl.div_rn(1.0, scale), 0.0)
    if IS_FP8:
        codes = fp32_to_e4m3(scaled)
    else:
        codes = ((scaled + ROUNDER).to(tl.int32, bitcast=True) & 0xFF).to(tl.uint8)
    tl.store(elements_ptr + block * stride_staging + places, codes, mask=is_there)
    place = scale_place(block, stride_staging, scales_offset, KV_HEADS)
    tl.store(scales_ptr + place, tl.where(is_finite, scale, float("nan")))


def check_staged(
    operation: str, pool: torch.Tensor, frames: torch.Tensor, staging: torch.Tensor, layout: QuantizedLayout
) -> None:
    """What quantising and back ask of their arguments; raises KernelArgumentError."""
    check_is(operation, "layout", layout, QuantizedLayout, "one whose source is the pool's layout")
    shape = (None, *layout.source.shape)
    dtypes = (layout.source.dtype,) if layout.source.dtype in KV_TYPES else KV_TYPES
    check_tensor(operation, "pool", pool, shape=shape, dtypes=dtypes, dense_axes=5)
    check_apart(operation, "pool", pool, 1)
    check_tensor(
        operation, "frames", frames, shape=(None,), dtypes=(torch.int64,), device=pool.device, dense_axes=1
    )
    check_tensor(
        operation,
        "staging",
        staging,
        shape=(len(frames), None),
        dtypes=(torch.uint8,),
        device=pool.device,
        dense_axes=1,
    )
    check_memory(operation, "staging", staging, layout.block_bytes)
