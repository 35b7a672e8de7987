"""The shape of a Llama-family model."""

from dataclasses import dataclass, fields

import torch

from engine.rope import DividedRope, RopeScaling
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
    # How the rotary frequencies were slowed down for longer contexts.
    rope_scaling: RopeScaling = None
    # The embedding makes the logits too; otherwise a matrix of its own does.
    tied_embeddings: bool = True
    # What is added to the projections: Q, K and V; the attention's output; the MLP's three.
    qkv_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    # Q and K are normed head by head before they are rotated (Qwen3).
    qk_norm: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and not isinstance(value, bool) and not value > 0:
                raise ValueError(f"ModelConfig.{field.name} must be positive, not {value}")
        if self.heads % self.kv_heads:
            raise ValueError(
                f"ModelConfig.heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})"
            )
        if self.head_dim % 2:
            raise ValueError(
                f"ModelConfig.head_dim must be even to be rotated by halves, not {self.head_dim}"
            )
        if (
            isinstance(self.rope_scaling, DividedRope)
            and len(self.rope_scaling.divisors) * 2 != self.head_dim
        ):
            raise ValueError(
                f"ModelConfig.rope_scaling has {len(self.rope_scaling.divisors)} divisors "
                f"for a head_dim of {self.head_dim}"
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
