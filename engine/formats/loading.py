"""From a model's files to its weights, whatever the form of the files."""

import math
from pathlib import Path
from typing import Protocol

import torch

from engine.config import ModelConfig
from engine.formats.tensors import EMBEDDING, FINAL_NORM, OUTPUT, layer_name
from engine.refused import ModelRefused
from engine.tokenizer import Tokenizer
from engine.weights import LayerWeights, Weights, make_weights

__all__ = ["ModelFiles", "load_weights"]


class ModelFiles(Protocol):
    """A model's files, opened and checked: what is read from them will be there, in the right shapes."""

    @property
    def path(self) -> Path: ...

    @property
    def config(self) -> ModelConfig: ...

    def read_tensor(self, name: str) -> torch.Tensor:
        """By its name in `transformers`, in a floating-point type; perhaps a view of the file."""
        ...

    def load_tokenizer(self) -> Tokenizer:
        """Raises `TokenizerRefused` if there is none, or none that can be read."""
        ...


def load_weights(files: ModelFiles, dtype: torch.dtype = torch.float32) -> Weights:
    """All weights, rounded to `dtype`, in memory of their own.

    Refuses those that `dtype` can't hold: fp16 ends at 65,504, and beyond it they would be infinite.
    """
    config = files.config
    embedding = _read(files, EMBEDDING, dtype)
    return make_weights(
        config,
        embedding=embedding,
        layers=tuple(_load_layer(files, index, dtype) for index in range(config.layers)),
        final_norm=_read(files, FINAL_NORM, dtype),
        output=embedding if config.tied_embeddings else _read(files, OUTPUT, dtype),
    )


def _read(files: ModelFiles, name: str, dtype: torch.dtype) -> torch.Tensor:
    return _to(dtype, files, name).clone()


def _to(dtype: torch.dtype, files: ModelFiles, name: str) -> torch.Tensor:
    """Perhaps still a view of the file."""
    tensor = files.read_tensor(name).to(dtype)
    # Both are NaN where any of them is.
    least, greatest = tensor.aminmax()
    if not (math.isfinite(least) and math.isfinite(greatest)):
        what, why = f"tensor {name}", f"{dtype} can't hold its values, or they are no numbers"
        raise ModelRefused(files.path, what, why, "choose --dtype bf16 or fp32, or fetch the weights again")
    return tensor


def _load_layer(files: ModelFiles, index: int, dtype: torch.dtype) -> LayerWeights:
    config = files.config

    def read(name: str) -> torch.Tensor:
        return _read(files, layer_name(index, name), dtype)

    def stack(names: tuple[str, ...], kind: str) -> torch.Tensor:
        """One below the other, which copies them."""
        return torch.cat([_to(dtype, files, layer_name(index, f"{name}.{kind}")) for name in names])

    def join(*names: str) -> torch.Tensor:
        """`[out, in]` matrices side by side as one `[in, sum of out]`."""
        return stack(names, "weight").t().contiguous()

    def join_biases(there: bool, *names: str) -> torch.Tensor | None:
        return stack(names, "bias") if there else None

    def join_norms() -> torch.Tensor:
        query = read("self_attn.q_norm.weight").expand(config.heads, -1)
        key = read("self_attn.k_norm.weight").expand(config.kv_heads, -1)
        return torch.cat((query, key))

    qkv = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    gate_up = ("mlp.gate_proj", "mlp.up_proj")
    return LayerWeights(
        attention_norm=read("input_layernorm.weight"),
        qkv=join(*qkv),
        qkv_bias=join_biases(config.qkv_bias, *qkv),
        qk_norm=join_norms() if config.qk_norm else None,
        attention_output=join("self_attn.o_proj"),
        attention_output_bias=join_biases(config.attention_output_bias, "self_attn.o_proj"),
        mlp_norm=read("post_attention_layernorm.weight"),
        gate_up=join(*gate_up),
        gate_up_bias=join_biases(config.mlp_bias, *gate_up),
        down=join("mlp.down_proj"),
        down_bias=join_biases(config.mlp_bias, "mlp.down_proj"),
    )
