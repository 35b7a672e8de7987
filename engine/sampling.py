"""Which token comes next. Greedy only: the most likely one, so that two runs can be compared."""

from dataclasses import dataclass

import torch

__all__ = ["Choice", "greedy"]


@dataclass(frozen=True, slots=True)
class Choice:
    token: int
    # How far its logit is ahead of the second best.
    margin: float


def greedy(logits: torch.Tensor) -> list[Choice]:
    """One choice for each row of fp32[sequences, vocab]."""
    best, ids = logits.topk(2)
    margins = (best[:, 0] - best[:, 1]).tolist()
    return [Choice(token, margin) for token, margin in zip(ids[:, 0].tolist(), margins, strict=True)]
