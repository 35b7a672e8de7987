"""Models of `transformers` as GGUF files, written as llama.cpp's converter writes them."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gguf import GGUFWriter

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

__all__ = ["gguf_name", "write_gguf", "write_keys"]

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(
    model: "LlamaForCausalLM",
    path: Path,
    architecture: str,
    others: dict[str, torch.Tensor] | None = None,
    **keys: Any,
) -> None:
    """others: tensors beside the model's. keys: of the architecture beside the config's, or in their place;
    dots as two underscores."""
    config: Any = model.config
    keys = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention__head_count": config.num_attention_heads,
        "attention__head_count_kv": config.num_key_value_heads,
        "attention__layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope__freq_base": config.rope_parameters["rope_theta"],
    } | keys
    tensors = {
        gguf_name(name): _permuted(name, tensor, config) if architecture == "llama" else tensor
        for name, tensor in model.state_dict().items()
        if not (name == "lm_head.weight" and config.tie_word_embeddings)
    }
    write_keys(path, architecture, keys, tensors | (others or {}))


def write_keys(path: Path, architecture: str, keys: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    writer = GGUFWriter(path, architecture)
    for name, value in keys.items():
        key = f"{architecture}.{name.replace('__', '.')}" if "." not in name else name
        add: Any = {
            int: writer.add_uint32,
            float: writer.add_float32,
            str: writer.add_string,
            bool: writer.add_bool,
            list: writer.add_array,
        }[type(value)]
        add(key, value)
    for name, tensor in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(tensor.numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_name(name: str) -> str:
    """Of a tensor, by its name in `transformers`."""
    stem, kind = name.rsplit(".", 1)
    if stem.startswith("model.layers."):
        _, _, index, stem = stem.split(".", 3)
        return f"blk.{index}.{_NAMES[stem]}.{kind}"
    return f"{_NAMES[stem]}.{kind}"


def _permuted(name: str, tensor: torch.Tensor, config: Any) -> torch.Tensor:
    """`permute` of llama.cpp's convert_hf_to_gguf.py, which it calls for weights and biases of Q and K."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for projection, count in heads.items():
        if f".{projection}." in name:
            halves = tensor.reshape(count, 2, tensor.shape[0] // count // 2, *tensor.shape[1:])
            return halves.swapaxes(1, 2).reshape(tensor.shape)
    return tensor
