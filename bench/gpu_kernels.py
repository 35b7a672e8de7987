"""Each kernel on the GPU against its torch reference on the CPU, at the shapes of a model that is served."""

from collections.abc import Callable, Iterator
from functools import partial

import torch

from bench.gpu_place import Place
from bench.report import Row, make_row
from kernels.copy_blocks import copy_blocks, copy_blocks_reference
from kernels.dequantize_blocks import dequantize_blocks, dequantize_blocks_reference
from kernels.gather_blocks import (
    gather_blocks,
    gather_blocks_reference,
    scatter_blocks,
    scatter_blocks_reference,
)
from kernels.layout import KVLayout
from kernels.paged_attention_decode import paged_attention_decode, paged_attention_decode_reference
from kernels.paged_attention_prefill import paged_attention_prefill, paged_attention_prefill_reference
from kernels.quantize_blocks import quantize_blocks, quantize_blocks_reference
from kernels.quantized_layout import Quantization, QuantizedLayout
from kernels.store_kv import store_kv, store_kv_reference

__all__ = ["measure"]

# Of the means of V, which is of the order of 1: what roundings of weights and outputs add up to.
TOLERANCE = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 2e-2}
LAYERS, LAYER, FRAMES, BLOCK_TOKENS = 3, 1, 160, 16
# Query heads, KV heads, their size: as in Llama 3.1 8B, and odd ones.
SHAPES = ((32, 8, 128), (9, 3, 64), (5, 1, 80))
SHAPES_QUICK, SHAPES_SMALL = SHAPES[:1], SHAPES[2:]
LENS = (1, 15, 16, 700, 333, 0)
NEW_TOKENS = (1, 17, 40, 3)

Tensors = list[torch.Tensor]


@torch.inference_mode()
def measure(place: Place, quick: bool) -> Iterator[Row]:
    shapes = SHAPES_QUICK if quick else SHAPES
    for heads, kv_heads, head_dim in shapes if place.is_gpu else SHAPES_SMALL:
        for dtype, tolerance in TOLERANCE.items():
            case = _Case(place, heads, kv_heads, head_dim, dtype)
            shape = f"{heads} heads, {kv_heads} x {head_dim}, {str(dtype).removeprefix('torch.')}"
            for name, error in (("decode", case.decode()), ("prefill", case.prefill())):
                yield make_row(f"attention, {name}, {shape}: largest error", "", [error], at_most=tolerance)
            # Bytes are moved whatever they mean: one type is enough, and kernels take long to compile.
            for name, run, reference in case.exact() if dtype is torch.bfloat16 else ():
                yield make_row(
                    f"{name}, {shape}: bytes that differ", "", [case.differing(run, reference)], at_most=0
                )


class _Case:
    """A pool of random KV on the CPU, and the same on the device."""

    def __init__(self, place: Place, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
        self._place = place
        self._heads, self._dtype = heads, dtype
        self._generator = torch.Generator().manual_seed(heads)
        self.layout = KVLayout(
            layers=LAYERS, kv_heads=kv_heads, head_dim=head_dim, block_tokens=BLOCK_TOKENS, dtype=dtype
        )
        self.memory = torch.zeros(FRAMES, self.layout.frame_stride_bytes, dtype=torch.uint8)
        pool = self.layout.view(self.memory)
        pool.copy_(self._draw(*pool.shape))

    def _draw(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self._generator).to(self._dtype)

    def _frames(self, count: int) -> torch.Tensor:
        return torch.randperm(FRAMES, generator=self._generator)[:count]

    def _there(self, *tensors: torch.Tensor) -> Tensors:
        return [tensor.to(self._place.device) for tensor in tensors]

    def _layer(self, memory: torch.Tensor) -> torch.Tensor:
        return self.layout.view(memory)[:, LAYER]

    def decode(self) -> float:
        width = -(-max(LENS) // BLOCK_TOKENS)
        tables = torch.stack([self._frames(width) for _ in LENS])
        query = self._draw(len(LENS), self._heads, self.layout.head_dim)
        lens = torch.tensor(LENS)
        expected = paged_attention_decode_reference(query, self._layer(self.memory), tables, lens, max(LENS))
        memory, *there = self._there(self.memory, query, tables, lens)
        found = paged_attention_decode(there[0], self._layer(memory), there[1], there[2], max(LENS))
        return _error(found, expected)

    def prefill(self) -> float:
        cached = 100
        lens = torch.tensor([cached + count for count in NEW_TOKENS])
        starts = torch.cat((torch.zeros(1, dtype=torch.int64), torch.tensor(NEW_TOKENS).cumsum(0)))
        width = -(-int(lens.max()) // BLOCK_TOKENS)
        tables = torch.stack([self._frames(width) for _ in NEW_TOKENS])
        query = self._draw(sum(NEW_TOKENS), self._heads, self.layout.head_dim)
        expected = paged_attention_prefill_reference(query, self._layer(self.memory), tables, starts, lens)
        memory, *there = self._there(self.memory, query, tables, starts, lens)
        found = paged_attention_prefill(
            there[0], self._layer(memory), there[1], there[2], there[3], max(NEW_TOKENS)
        )
        return _error(found, expected)

    def exact(self) -> Iterator[tuple[str, Callable[..., None], Callable[..., None]]]:
        """What must give the same bytes: name, operation and reference, over `memory, staging, frames`."""
        size = self.layout.block_bytes
        key = self._draw(40, self.layout.kv_heads, self.layout.head_dim)
        slots = torch.randperm(FRAMES * BLOCK_TOKENS, generator=self._generator)[:40]
        slots[3] = -1

        def store(operation: Callable[..., None], memory: torch.Tensor, *_: torch.Tensor) -> None:
            there = [tensor.to(memory.device) for tensor in (slots, key, key.flip(0))]
            operation(self._layer(memory), *there)

        def copy(operation: Callable[..., None], memory: torch.Tensor, *rest: torch.Tensor) -> None:
            sources, targets = rest[1].chunk(2)
            operation(memory, sources.contiguous(), targets.contiguous(), size)

        def gather(operation: Callable[..., None], memory: torch.Tensor, *rest: torch.Tensor) -> None:
            operation(memory, rest[1], rest[0], size)

        def scatter(operation: Callable[..., None], memory: torch.Tensor, *rest: torch.Tensor) -> None:
            operation(rest[0], rest[1], memory, size)

        yield "store_kv", partial(store, store_kv), partial(store, store_kv_reference)
        yield "copy_blocks", partial(copy, copy_blocks), partial(copy, copy_blocks_reference)
        yield "gather_blocks", partial(gather, gather_blocks), partial(gather, gather_blocks_reference)
        yield "scatter_blocks", partial(scatter, scatter_blocks), partial(scatter, scatter_blocks_reference)
        for kind in Quantization:
            quantized = QuantizedLayout(source=self.layout, quantization=kind)

            def there_and_back(
                operations: tuple[Callable[..., None], Callable[..., None]],
                layout: QuantizedLayout,
                memory: torch.Tensor,
                *rest: torch.Tensor,
            ) -> None:
                pool, (staging, frames) = self.layout.view(memory), rest
                filled = torch.full((len(frames),), BLOCK_TOKENS, device=memory.device)
                operations[0](pool, frames, filled, staging, layout)
                operations[1](staging, frames, pool, layout)

            yield (
                f"quantize_blocks and back, {kind.value}",
                partial(there_and_back, (quantize_blocks, dequantize_blocks), quantized),
                partial(there_and_back, (quantize_blocks_reference, dequantize_blocks_reference), quantized),
            )

    def differing(self, run: Callable[..., None], reference: Callable[..., None]) -> float:
        """Bytes of pool and staging after the one and the other, from the same start."""
        staging = torch.arange(64, dtype=torch.uint8)[:, None].expand(-1, self.layout.block_bytes)
        start = (self.memory.clone(), staging.contiguous(), self._frames(64))
        there = self._there(*start)
        if not self._place.is_gpu:
            there = [tensor.clone() for tensor in start]
        run(*there)
        reference(*start)
        return float(sum(int((a.cpu() != b).sum()) for a, b in zip(there, start, strict=True)))


def _error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.cpu().double() - expected.double()).abs().max())
