"""The shape of a Llama-family model."""

from dataclasses import dataclass, fields

import torch

from kernels.layout import KVLayout

__all__ = ["ModelConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes and constants of the architecture: all that the forward pass needs beside the weights."""

    vocab_size: int
    hidden_size: int
    # Width of the MLP between its two projections.
    intermediate_size: int
    layers: int
    heads: int
    # Query heads share KV heads in groups of `heads / kv_heads`.
    kv_heads: int
    head_dim: int
    # Tokens of the longest context that the model was trained for; positions stay below it.
    context_length: int
    # Base of the rotary frequencies.
    rope_theta: float
    rms_norm_eps: float

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise ValueError(f"ModelConfig.{field.name} must be positive, not {value}")
        if self.heads % self.kv_heads:
            raise ValueError(
                f"ModelConfig.heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})"
            )
        if self.head_dim % 2:
            raise ValueError(
                f"ModelConfig.head_dim must be even to be rotated by halves, not {self.head_dim}"
            )

    def kv_layout(self, *, block_tokens: int, dtype: torch.dtype) -> KVLayout:
        """The layout of this model's KV in frames of `block_tokens` tokens."""
        return KVLayout(
            layers=self.layers,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            block_tokens=block_tokens,
            dtype=dtype,
        )
