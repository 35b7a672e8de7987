"""The weights of a Llama-family model: read from GGUF, or drawn at random for tests.

Matrices are stored `[in, out]`, the transpose of PyTorch's habit, and applied as `x @ w`: on CPUs that
product is faster for a few rows, and for nearly all shapes its rows come out the same bits whatever the
number of rows beside them. Projections that share an input are one matrix: Q, K and V; gate and up.
"""

import hashlib
import math
from dataclasses import astuple, dataclass

import torch

from engine.checkpoint import Checkpoint
from engine.config import ModelConfig

__all__ = ["LayerWeights", "Weights", "load_weights", "random_weights", "read_config"]

_ATTENTION_TENSORS = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output")
_LAYER_TENSORS = (*_ATTENTION_TENSORS, "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerWeights:
    """One transformer layer."""

    attention_norm: torch.Tensor  # [hidden]
    qkv: torch.Tensor  # [hidden, (heads + 2 * kv_heads) * head_dim]: Q, K, V, heads in order
    attention_output: torch.Tensor  # [heads * head_dim, hidden]
    mlp_norm: torch.Tensor  # [hidden]
    gate_up: torch.Tensor  # [hidden, 2 * intermediate]: gate, then up
    down: torch.Tensor  # [intermediate, hidden]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Weights:
    """A whole model, all tensors of one dtype."""

    config: ModelConfig
    # [vocab, hidden]: embeds the tokens and, tied, makes the logits.
    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor  # [hidden]
    # 32 bytes that name the model: equal only for the same architecture and the same weights.
    digest: bytes

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype


def read_config(checkpoint: Checkpoint) -> ModelConfig:
    """The architecture that a GGUF file describes; refuses what this model code does not compute."""
    architecture = checkpoint.get("general.architecture")
    if architecture != "llama":
        raise ValueError(f"{checkpoint.path}: architecture {architecture!r} is not supported, only 'llama'")
    for key in ("llama.rope.scaling.type", "llama.expert_count"):
        if checkpoint.has(key):
            raise ValueError(f"{checkpoint.path}: {key} = {checkpoint.get(key)!r} is not supported")
    heads: int = checkpoint.get("llama.attention.head_count")
    hidden_size: int = checkpoint.get("llama.embedding_length")
    return ModelConfig(
        vocab_size=checkpoint.get("llama.vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=checkpoint.get("llama.feed_forward_length"),
        layers=checkpoint.get("llama.block_count"),
        heads=heads,
        kv_heads=checkpoint.get("llama.attention.head_count_kv"),
        head_dim=hidden_size // heads,
        context_length=checkpoint.get("llama.context_length"),
        rope_theta=checkpoint.get("llama.rope.freq_base"),
        rms_norm_eps=checkpoint.get("llama.attention.layer_norm_rms_epsilon"),
    )


def load_weights(checkpoint: Checkpoint, dtype: torch.dtype = torch.float32) -> Weights:
    """Read and dequantise all weights of a checkpoint whose embeddings are tied."""
    config = read_config(checkpoint)
    expected = {"token_embd.weight", "output_norm.weight"}
    expected |= {f"blk.{index}.{name}.weight" for index in range(config.layers) for name in _LAYER_TENSORS}
    if surplus := checkpoint.tensor_names - expected:
        raise ValueError(
            f"{checkpoint.path}: tensors that this model has no place for: {sorted(surplus)[:5]}"
        )
    return Weights(
        config=config,
        embedding=checkpoint.read_tensor("token_embd.weight").to(dtype),
        layers=tuple(_load_layer(checkpoint, config, index, dtype) for index in range(config.layers)),
        final_norm=checkpoint.read_tensor("output_norm.weight").to(dtype),
        digest=checkpoint.digest,
    )


def random_weights(config: ModelConfig, seed: int, dtype: torch.dtype = torch.float32) -> Weights:
    """A small model for tests: the same weights for the same config, seed and dtype."""
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
    digest = hashlib.sha256(repr(("random_weights.v1", astuple(config), seed, str(dtype))).encode()).digest()
    return Weights(config=config, embedding=embedding, layers=layers, final_norm=draw_norm(), digest=digest)


def _load_layer(checkpoint: Checkpoint, config: ModelConfig, index: int, dtype: torch.dtype) -> LayerWeights:
    def read(name: str) -> torch.Tensor:
        return checkpoint.read_tensor(f"blk.{index}.{name}.weight")

    def join(*matrices: torch.Tensor) -> torch.Tensor:
        """`[out, in]` matrices side by side as one `[in, sum of out]`."""
        return torch.cat(matrices).t().to(dtype).contiguous()

    query = _to_half_rotation(read("attn_q"), config.heads)
    key = _to_half_rotation(read("attn_k"), config.kv_heads)
    return LayerWeights(
        attention_norm=read("attn_norm").to(dtype),
        qkv=join(query, key, read("attn_v")),
        attention_output=join(read("attn_output")),
        mlp_norm=read("ffn_norm").to(dtype),
        gate_up=join(read("ffn_gate"), read("ffn_up")),
        down=join(read("ffn_down")),
    )


def _to_half_rotation(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Undo GGUF's order of Q and K rows, `[heads * head_dim, in]`.

    llama.cpp rotates neighbouring pairs (0, 1), (2, 3), …, so its converter interleaves the halves of each
    head. The model here rotates dimension i with i + head_dim / 2, as transformers does.
    """
    rows, columns = weight.shape
    pairs = weight.view(heads, rows // heads // 2, 2, columns)
    return pairs.transpose(1, 2).reshape(rows, columns)
