"""Rotary frequencies: how fast each pair of a head's dimensions turns with the position.

Pair i turns by `theta ** (-2 i / head_dim)` radians a token (Su et al., RoFormer, section 3.4.3). Models that
were trained on for longer contexts slow them down, by one of the rules here. The rules, and the order in
which they round, are those of `transformers` (modeling_rope_utils.py). Rules that change with the length of
the context (dynamic, longrope) or scale the scores (yarn) are not covered. Tests: tests/engine/test_rope.py.
"""

import math
from dataclasses import dataclass

import torch

__all__ = ["DividedRope", "LinearRope", "Llama3Rope", "RopeScaling", "inverse_frequencies"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearRope:
    """All frequencies divided by one number (Chen et al., position interpolation)."""

    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Rope:
    """Llama 3.1: slow pairs divided by `factor`, fast ones left, and a ramp between.

    A pair's wavelength is how many tokens it takes to turn once.
    """

    factor: float
    # Wavelengths above `original_context_length / low_frequency_factor` are slow,
    low_frequency_factor: float
    # and those below `original_context_length / high_frequency_factor` are fast.
    high_frequency_factor: float
    original_context_length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedRope:
    """Each frequency divided by a number of its own, as GGUF files have it."""

    # One a pair: head_dim / 2 of them.
    divisors: tuple[float, ...]


RopeScaling = LinearRope | Llama3Rope | DividedRope | None


def inverse_frequencies(head_dim: int, theta: float, scaling: RopeScaling) -> torch.Tensor:
    """Radians a token, fp32[head_dim / 2]."""
    powers = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    plain = 1.0 / (theta**powers)
    match scaling:
        case None:
            return plain
        case LinearRope(factor=factor):
            return plain / factor
        case Llama3Rope():
            return _slow_down(plain, scaling)
        case DividedRope(divisors=divisors):
            return plain / torch.tensor(divisors, dtype=torch.float32)


def _slow_down(plain: torch.Tensor, rule: Llama3Rope) -> torch.Tensor:
    low, high, length = rule.low_frequency_factor, rule.high_frequency_factor, rule.original_context_length
    wavelengths = 2 * math.pi / plain
    share = (length / wavelengths - low) / (high - low)
    between = (1 - share) * plain / rule.factor + share * plain
    return torch.where(
        wavelengths > length / low,
        plain / rule.factor,
        torch.where(wavelengths < length / high, plain, between),
    )
