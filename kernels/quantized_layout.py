"""How a quantised block lies in memory: one byte for each element, then one scale for each head.

The scale is of one KV head of one layer of one block, K and V apart: what is large in one head doesn't
coarsen another. FP8 is e4m3 (OCP 8-bit floating point, "fn": no infinities, largest 448), which keeps small
values next to large ones; INT8 is symmetric, -127 to 127, which is finer where all are of one size.

    |x - back(x)| <= max(2^-4 * |x|, 2^-10 * scale)     FP8: half a step of its mantissa, or of its smallest
    |x - back(x)| <= scale / 2                          INT8: half a step
    scale = max(|x|) / 448, or / 127; at least 2^-126, the smallest that divides well

and on top the roundings of fp32 on the way (2^-21 of the largest) and of the pool's type at its end. A head
that holds NaN or infinity comes back as NaN, all of it.

A quantised replica is not the block: it has a fingerprint of its own, so it is found under a namespace of its
own and never passes for a lossless one. Tests: tests/kernels/test_quantize_blocks.py.
"""

import math
from dataclasses import dataclass
from enum import Enum

import torch

from kernels.layout import KVLayout

__all__ = ["Quantization", "QuantizedLayout"]

SCALE_MIN = 2.0**-126
# Blocks begin at multiples of this, so that they can be moved in the widest accesses.
ALIGNMENT_BYTES = 16


class Quantization(Enum):
    """Into which type of one byte, by the name that a layout's description has."""

    FP8 = "fp8_e4m3"
    INT8 = "int8"

    @property
    def largest(self) -> float:
        """What the largest element of a head becomes."""
        return 448.0 if self is Quantization.FP8 else 127.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedLayout:
    """Where the elements and the scales of a block of `source` lie, once it is quantised."""

    source: KVLayout
    quantization: Quantization

    @property
    def scales_offset(self) -> int:
        """Bytes of elements, in the order of `source`; the scales begin behind them, at a multiple of 4."""
        return -(-math.prod(self.source.shape) // 4) * 4

    @property
    def block_bytes(self) -> int:
        """Bytes of one quantised block, filled up to a multiple of 16."""
        scales = 4 * self.source.layers * 2 * self.source.kv_heads
        return -(-(self.scales_offset + scales) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES

    def elements(self, staging: torch.Tensor) -> torch.Tensor:
        """The elements' bytes in uint8[blocks, at least block_bytes], without copying them:
        uint8[blocks, layers, 2, block_tokens, kv_heads, head_dim]."""
        return staging[:, : math.prod(self.source.shape)].view(-1, *self.source.shape)

    def scales(self, staging: torch.Tensor) -> torch.Tensor:
        """The scales in the same bytes: fp32[blocks, layers, 2, kv_heads]."""
        layout = self.source
        count = layout.layers * 2 * layout.kv_heads
        words = staging[:, : self.block_bytes].view(torch.float32)
        scales = words[:, self.scales_offset // 4 :][:, :count]
        return scales.view(-1, layout.layers, 2, layout.kv_heads)

    def description(self) -> dict[str, str]:
        """The source's, with what becomes of it."""
        return self.source.description() | {
            "quantisation": f"{self.quantization.value}, a scale for each block, layer, side and KV head"
        }

    def fingerprint(self, model_digest: bytes) -> bytes:
        """32 bytes, never those of the source, nor of another quantisation of it."""
        return self.source.fingerprint_of(model_digest, self.description())
