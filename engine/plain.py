"""The plain run: the same model over a private pool, with no service, no tiers and nothing cached.

What a run over kvstore is compared with. It shares the model, the grid of prefill chunks and the choice of
tokens, and nothing that has to do with where KV is kept. One request at a time.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from engine.batch import Batch
from engine.model import Llama
from engine.requests import chunk_end
from engine.sampling import GREEDY, Choice, Sampling, choose

__all__ = ["PlainAnswer", "answer_plainly"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainAnswer:
    tokens: list[int]
    # Of each token, by how much its logit was ahead of the next best.
    margins: list[float]
    first_token_seconds: float


def answer_plainly(
    model: Llama,
    prompt: Sequence[int],
    max_new_tokens: int,
    stop_ids: frozenset[int] = frozenset(),
    block_tokens: int = 16,
    sampling: Sampling = GREEDY,
    sample: int = 0,
) -> PlainAnswer:
    """Computes everything from the first token on. `sample`: its number among those of a request."""
    began = time.monotonic()
    run = _Run(model, len(prompt) + max_new_tokens, block_tokens, sampling, sample)
    choices = [run.prefill(prompt)]
    first_token_seconds = time.monotonic() - began
    while len(choices) < max_new_tokens and choices[-1].token not in stop_ids:
        choices.append(run.decode(choices[-1].token))
    return PlainAnswer(
        tokens=[choice.token for choice in choices],
        margins=[choice.margin for choice in choices],
        first_token_seconds=first_token_seconds,
    )


class _Run:
    """One sequence in a pool of its own, whose frames stand in token order."""

    def __init__(
        self, model: Llama, token_count_max: int, block_tokens: int, sampling: Sampling, sample: int
    ) -> None:
        frames = -(-token_count_max // block_tokens)
        layout = model.config.kv_layout(block_tokens=block_tokens, dtype=model.weights.dtype)
        self._model = model
        self._device = model.weights.device
        memory = torch.zeros(frames, layout.frame_stride_bytes, dtype=torch.uint8, device=self._device)
        self._pool = layout.view(memory)
        self._table = np.arange(frames, dtype=np.int32)
        self._block_tokens = block_tokens
        self._context_len = 0
        self._sampling, self._sample = sampling, sample

    def prefill(self, prompt: Sequence[int]) -> Choice:
        logits = torch.empty(0)
        while self._context_len < len(prompt):
            end = chunk_end(self._context_len, len(prompt))
            chunk = prompt[self._context_len : end]
            batch = Batch.prefill(
                chunk, cached=self._context_len, block_table=self._table, block_tokens=self._block_tokens
            )
            logits = self._forward(batch)
            self._context_len = end
        return self._choose(logits)

    def decode(self, token: int) -> Choice:
        self._context_len += 1
        batch = Batch.decode(
            [token],
            context_lens=[self._context_len],
            block_tables=self._table[None],
            block_tokens=self._block_tokens,
        )
        return self._choose(self._forward(batch))

    def _choose(self, logits: torch.Tensor) -> Choice:
        return choose(logits, [(self._sampling, self._sample, self._context_len)])[0]

    def _forward(self, batch: Batch) -> torch.Tensor:
        there = batch.map(lambda tensor: tensor.to(self._device))
        return self._model.forward(there, self._pool).cpu()
