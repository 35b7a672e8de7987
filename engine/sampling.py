"""Which token comes next: the most likely one, or one drawn by what the model thinks of each.

A draw depends on the request's seed, the sample's number and the token's place, and on nothing else: not on
the batch, on who else runs or on what was preempted. Tests: tests/engine/test_sampling.py.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

__all__ = ["GREEDY", "Choice", "Sampling", "choose", "greedy"]


@dataclass(frozen=True, slots=True)
class Choice:
    token: int
    # How far its logit is ahead of the best other; below zero where another was more likely.
    margin: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the tokens of one request are chosen. Temperature 0: the most likely one, always."""

    temperature: float = 0.0
    # Only the likeliest tokens that together have this probability are drawn from.
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature <= 2.0:
            raise ValueError(f"temperature must be from 0 to 2, not {self.temperature}")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p must be above 0 and at most 1, not {self.top_p}")


GREEDY = Sampling()


def choose(logits: torch.Tensor, draws: Sequence[tuple[Sampling, int, int]]) -> list[Choice]:
    """One choice for each row of fp32[sequences, vocab].

    `draws`: of each row how to choose, the number of the sample among those of its request, and the token's
    place in the sequence.
    """
    choices = greedy(logits)
    for row, (sampling, sample, place) in enumerate(draws):
        if sampling.temperature > 0.0:
            uniform = _uniform(sampling.seed, sample, place)
            choices[row] = _draw(logits[row], choices[row], sampling, uniform)
    return choices


def greedy(logits: torch.Tensor) -> list[Choice]:
    """The most likely token of each row of fp32[sequences, vocab]."""
    best, ids = logits.topk(2)
    margins = (best[:, 0] - best[:, 1]).tolist()
    return [Choice(token, margin) for token, margin in zip(ids[:, 0].tolist(), margins, strict=True)]


def _draw(logits: torch.Tensor, best: Choice, sampling: Sampling, uniform: float) -> Choice:
    """By the inverse of the distribution function over tokens from the likeliest down (nucleus sampling,
    Holtzman et al. 2020). In double precision: a token of small probability keeps its share."""
    # The largest is taken off first: a small temperature would make infinities of the quotients.
    scaled = (logits - logits.max()).double() / sampling.temperature
    probabilities, ids = torch.softmax(scaled, dim=-1).sort(descending=True, stable=True)
    sums = probabilities.cumsum(0)
    # Up to the first token with which the sum reaches top_p: at least one.
    kept = min(int(torch.searchsorted(sums, sampling.top_p)) + 1, len(sums))
    place = int(torch.searchsorted(sums[:kept], uniform * float(sums[kept - 1]), right=True))
    token = int(ids[min(place, kept - 1)])
    if token == best.token:
        return best
    return Choice(token, float(logits[token] - logits[best.token]))


def _uniform(seed: int, sample: int, place: int) -> float:
    """From 0 to below 1, in steps of 2**-53."""
    digest = hashlib.blake2b(f"{seed},{sample},{place}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53
