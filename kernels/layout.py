"""How the KV of one block lies in a frame: the shape that engine, store and kernels agree on.

A frame is block-major: axes `[layers, 2, block_tokens, kv_heads, head_dim]`, where index 0 of the second axis
is K and 1 is V. All layers of a block are one contiguous run of bytes, so moving a block between tiers is one
copy. Frames stand at a stride that is a multiple of 4,096 bytes (O_DIRECT asks for it); the bytes between
`block_bytes` and the stride belong to nobody and are never read.

The store never interprets a frame. It compares the fingerprint made here and shows the description to people.
Tests: tests/kernels/test_layout.py.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["FRAME_ALIGNMENT_BYTES", "KVLayout"]

FRAME_ALIGNMENT_BYTES = 4096
AXES = "layers,kv,block_tokens,kv_heads,head_dim"
_FINGERPRINT_TAG = b"kvstore.layout.v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLayout:
    """Shape and type of the KV of one block; everything about a frame follows from it."""

    layers: int
    kv_heads: int
    head_dim: int
    block_tokens: int
    # K and V share one floating-point type; the bytes of a frame mean nothing under another one.
    dtype: torch.dtype

    def __post_init__(self) -> None:
        for name in ("layers", "kv_heads", "head_dim", "block_tokens"):
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"KVLayout.{name} must be at least 1, not {value}")
        if not self.dtype.is_floating_point:
            raise ValueError(f"KVLayout.dtype must be a floating-point type, not {self.dtype}")

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        """The axes of one frame: `[layers, 2, block_tokens, kv_heads, head_dim]`."""
        return (self.layers, 2, self.block_tokens, self.kv_heads, self.head_dim)

    @property
    def block_bytes(self) -> int:
        """Bytes of KV in one block."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def frame_stride_bytes(self) -> int:
        """Bytes from the start of one frame to the next: `block_bytes` rounded up to the alignment."""
        return -(-self.block_bytes // FRAME_ALIGNMENT_BYTES) * FRAME_ALIGNMENT_BYTES

    def view(self, memory: npt.NDArray[np.uint8] | torch.Tensor) -> torch.Tensor:
        """See a mapped pool, `uint8[frames, frame_stride_bytes]`, as KV without copying it.

        Returns a strided tensor `dtype[frames, layers, 2, block_tokens, kv_heads, head_dim]` over the same
        bytes: what is written to one is read from the other. A numpy array must be writable.
        """
        pool = memory if isinstance(memory, torch.Tensor) else torch.from_numpy(memory)
        if pool.dtype != torch.uint8 or pool.dim() != 2 or pool.shape[1] != self.frame_stride_bytes:
            raise ValueError(
                f"a pool of this layout is uint8[frames, {self.frame_stride_bytes}], "
                f"not {pool.dtype}{list(pool.shape)}"
            )
        elements = pool.view(self.dtype)
        return elements[:, : math.prod(self.shape)].view(-1, *self.shape)

    def description(self) -> dict[str, str]:
        """The layout in words, for people: the store shows it and never interprets it."""
        return {
            "dtype": str(self.dtype).removeprefix("torch."),
            "layers": str(self.layers),
            "kv_heads": str(self.kv_heads),
            "head_dim": str(self.head_dim),
            "block_tokens": str(self.block_tokens),
            "axes": AXES,
            "parallel_split": "1",
            "quantisation": "none",
        }

    def fingerprint(self, model_digest: bytes) -> bytes:
        """32 bytes that are equal only for engines that may read each other's blocks.

        SHA-256 over tagged fields, each preceded by its length, so that no two lists of fields run together
        into the same bytes.
        """
        return self.fingerprint_of(model_digest, self.description())

    @staticmethod
    def fingerprint_of(model_digest: bytes, description: Mapping[str, str]) -> bytes:
        """The fingerprint of any such description."""
        digest = hashlib.sha256()
        fields = {"model": model_digest} | {name: text.encode() for name, text in description.items()}
        for part in (_FINGERPRINT_TAG, *(part for item in fields.items() for part in item)):
            raw = part.encode() if isinstance(part, str) else part
            digest.update(len(raw).to_bytes(8, "little"))
            digest.update(raw)
        return digest.digest()
