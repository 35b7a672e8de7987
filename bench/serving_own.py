"""What the model's own work takes, without server or service: what bounds are made of.

In this process, with the weights, the threads and the dtype of the servers that are measured, in turns with
them. Passes are as large as the engine's at most, and nothing else is done between them.
"""

import time

import numpy as np
import torch

from engine.batch import Batch
from engine.model import Llama
from engine.models import DTYPES, load_model_weights
from engine.requests import CHUNK_TOKENS

__all__ = ["OwnTimes"]

BLOCK_TOKENS = 16
# As the server has by default.
THREADS = 2


class OwnTimes:
    def __init__(self, model: str, tokens_max: int) -> None:
        torch.set_num_threads(THREADS)
        self._model = Llama(load_model_weights(model, DTYPES["fp32"]))
        layout = self._model.config.kv_layout(block_tokens=BLOCK_TOKENS, dtype=DTYPES["fp32"])
        frames = -(-tokens_max // BLOCK_TOKENS)
        self._pool = layout.view(torch.zeros(frames, layout.frame_stride_bytes, dtype=torch.uint8))
        self._table = np.arange(frames, dtype=np.int32)

    def prefill(self, behind: int, tokens: int) -> float:
        """Seconds for so many tokens of a prompt, with so many before them that are there already."""
        began = time.perf_counter()
        for first in range(behind, behind + tokens, CHUNK_TOKENS):
            count = min(CHUNK_TOKENS, behind + tokens - first)
            batch = Batch.prefill(
                np.arange(count) % self._model.config.vocab_size,
                cached=first,
                block_table=self._table,
                block_tokens=BLOCK_TOKENS,
            )
            self._model.forward(batch, self._pool)
        return time.perf_counter() - began
