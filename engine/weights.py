"""The weights of a Llama-family model, as the forward pass wants them; drawn at random for tests.

Matrices are stored `[in, out]`, the transpose of PyTorch's habit, and applied as `x @ w`: on CPUs that
product is faster for a few rows, and for nearly all shapes its rows come out the same bits whatever the
number of rows beside them. Projections that share an input are one matrix: Q, K and V; gate and up.
Where they are read from: engine/formats.
"""

import hashlib
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields

import torch

from engine.config import ModelConfig

__all__ = ["LayerWeights", "Weights", "make_weights", "random_weights"]

_DIGEST_TAG = "kvstore.weights.v1"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerWeights:
    """One transformer layer. Biases and `qk_norm` are there where the config says so."""

    attention_norm: torch.Tensor  # [hidden]
    qkv: torch.Tensor  # [hidden, (heads + 2 * kv_heads) * head_dim]: Q, K, V, heads in order
    attention_output: torch.Tensor  # [heads * head_dim, hidden]
    mlp_norm: torch.Tensor  # [hidden]
    gate_up: torch.Tensor  # [hidden, 2 * intermediate]: gate, then up
    down: torch.Tensor  # [intermediate, hidden]
    qkv_bias: torch.Tensor | None = None  # [(heads + 2 * kv_heads) * head_dim]
    # [heads + kv_heads, head_dim]: of each head of Q, then of K; the model has one for all of each.
    qk_norm: torch.Tensor | None = None
    attention_output_bias: torch.Tensor | None = None  # [hidden]
    gate_up_bias: torch.Tensor | None = None  # [2 * intermediate]
    down_bias: torch.Tensor | None = None  # [hidden]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Weights:
    """A whole model, all tensors of one dtype."""

    config: ModelConfig
    # [vocab, hidden]: embeds the tokens.
    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor  # [hidden]
    # [vocab, hidden]: makes the logits; the embedding itself where they are tied.
    output: torch.Tensor
    # 32 bytes that name the model: equal only for the same architecture and the same weights.
    digest: bytes

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @property
    def device(self) -> torch.device:
        return self.embedding.device


def make_weights(
    config: ModelConfig,
    *,
    embedding: torch.Tensor,
    layers: tuple[LayerWeights, ...],
    final_norm: torch.Tensor,
    output: torch.Tensor,
) -> Weights:
    """Weights with their digest, which is made from what the model will compute with.

    Not from the files: whatever became of a file before, while or after it was read, the name is that of the
    numbers in memory. So they must not be a view of a file. SHA-256, some 1.7 GiB/s a thread, one thread for
    each that torch has.
    """
    tensors = [embedding, final_norm, *(() if output is embedding else (output,))]
    for layer in layers:
        tensors += [tensor for field in fields(layer) if (tensor := getattr(layer, field.name)) is not None]
    digest = hashlib.sha256(repr((_DIGEST_TAG, config, str(embedding.dtype))).encode())
    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        for part in threads.map(_digest, tensors):
            digest.update(part)
    return Weights(
        config=config,
        embedding=embedding,
        layers=layers,
        final_norm=final_norm,
        output=output,
        digest=digest.digest(),
    )


def random_weights(config: ModelConfig, seed: int, dtype: torch.dtype = torch.float32) -> Weights:
    """A small plain Llama with tied embeddings, for tests: the same for the same config, seed and dtype."""
    generator = torch.Generator().manual_seed(seed)

    def draw(rows: int, columns: int) -> torch.Tensor:
        return (torch.randn(rows, columns, generator=generator) / math.sqrt(rows)).to(dtype)

    def draw_norm() -> torch.Tensor:
        return (1 + torch.randn(config.hidden_size, generator=generator) * 0.1).to(dtype)

    hidden, attention = config.hidden_size, config.heads * config.head_dim
    layers = tuple(
        LayerWeights(
            attention_norm=draw_norm(),
            qkv=draw(hidden, attention + 2 * config.kv_heads * config.head_dim),
            attention_output=draw(attention, hidden),
            mlp_norm=draw_norm(),
            gate_up=draw(hidden, 2 * config.intermediate_size),
            down=draw(config.intermediate_size, hidden),
        )
        for _ in range(config.layers)
    )
    embedding = draw(config.vocab_size, hidden)
    return make_weights(config, embedding=embedding, layers=layers, final_norm=draw_norm(), output=embedding)


def _digest(tensor: torch.Tensor) -> bytes:
    """Of a tensor's shape and bytes. Contiguous, so that no stride tells two equal tensors apart."""
    digest = hashlib.sha256(repr(tuple(tensor.shape)).encode())
    digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.digest()
