"""Launches of all kernels at the shapes of a model, on tensors that have shapes and no memory."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from kernels.copy_blocks import plan_copy_blocks
from kernels.dequantize_blocks import plan_dequantize_blocks
from kernels.gather_blocks import plan_gather_blocks, plan_scatter_blocks
from kernels.launch import Launch
from kernels.layout import KVLayout
from kernels.paged_attention_decode import plan_paged_attention_decode
from kernels.paged_attention_prefill import plan_paged_attention_prefill
from kernels.quantize_blocks import plan_quantize_blocks
from kernels.quantized_layout import Quantization, QuantizedLayout
from kernels.store_kv import plan_store_kv

__all__ = ["LLAMA_8B", "ModelShape", "launches"]

FRAMES, SEQUENCES, CONTEXT_TOKENS, CHUNK_TOKENS = 1000, 8, 8192, 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What kernels see of a model."""

    dtype: torch.dtype
    heads: int
    kv_heads: int
    head_dim: int
    block_tokens: int = 16
    layers: int = 32

    @property
    def layout(self) -> KVLayout:
        return KVLayout(
            layers=self.layers,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            block_tokens=self.block_tokens,
            dtype=self.dtype,
        )


# Of Llama 3.1 8B and many of its size: what serving is tuned for.
LLAMA_8B = ModelShape(dtype=torch.bfloat16, heads=32, kv_heads=8, head_dim=128)


def launches(shape: ModelShape) -> Iterator[tuple[str, Launch]]:
    """Each kernel by name; those of decode for contexts that are split."""
    layout = shape.layout
    memory = _tensor(torch.uint8, FRAMES, layout.frame_stride_bytes)
    kv_layer = layout.view(memory)[:, 0]
    yield from _attention(shape, kv_layer)

    frames = _tensor(torch.int64, SEQUENCES)
    staging = _tensor(torch.uint8, SEQUENCES, layout.block_bytes)
    yield "copy_blocks", plan_copy_blocks(memory, frames, frames, layout.block_bytes)
    yield "gather_blocks", plan_gather_blocks(memory, frames, staging, layout.block_bytes)
    yield "scatter_blocks", plan_scatter_blocks(staging, frames, memory, layout.block_bytes)
    for kind in Quantization:
        quantised = QuantizedLayout(source=layout, quantization=kind)
        packed = _tensor(torch.uint8, SEQUENCES, quantised.block_bytes)
        pool, filled = layout.view(memory), _tensor(torch.int32, SEQUENCES)
        quantize = plan_quantize_blocks(pool, frames, filled, packed, quantised)
        yield f"quantize_blocks {kind.name}", quantize
        yield f"dequantize_blocks {kind.name}", plan_dequantize_blocks(packed, frames, pool, quantised)


def _attention(shape: ModelShape, kv_layer: torch.Tensor) -> Iterator[tuple[str, Launch]]:
    kv = _tensor(shape.dtype, SEQUENCES, shape.kv_heads, shape.head_dim)
    yield "store_kv", plan_store_kv(kv_layer, _tensor(torch.int64, SEQUENCES), kv, kv)

    query = _tensor(shape.dtype, SEQUENCES, shape.heads, shape.head_dim)
    tables = _tensor(torch.int32, SEQUENCES, CONTEXT_TOKENS // shape.block_tokens)
    lens = _tensor(torch.int32, SEQUENCES)
    attend, merge = plan_paged_attention_decode(query, query, kv_layer, tables, lens, CONTEXT_TOKENS)
    yield "paged_attention_decode", attend
    yield "paged_attention_decode, merge", merge

    chunks = _tensor(shape.dtype, SEQUENCES * CHUNK_TOKENS, shape.heads, shape.head_dim)
    starts = _tensor(torch.int32, SEQUENCES + 1)
    prefill = plan_paged_attention_prefill(chunks, chunks, kv_layer, tables, starts, lens, CHUNK_TOKENS)
    yield "paged_attention_prefill", prefill


def _tensor(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")
