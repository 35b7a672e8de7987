"""Folders in Hugging Face's form, written by hand: config.json and random weights for it."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

__all__ = ["CONFIG", "draw_tensors", "write_config", "write_folder"]

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 61,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}


def write_folder(folder: Path, dtype: torch.dtype = torch.float32, seed: int = 0, **changes: Any) -> Path:
    """changes: of CONFIG; weights are those of CONFIG itself."""
    folder.mkdir(exist_ok=True)
    write_config(folder, **changes)
    save_file(draw_tensors(dtype, seed), folder / "model.safetensors")
    return folder


def write_config(folder: Path, **changes: Any) -> None:
    """A field that is to be left out is changed to `...`."""
    values = {name: value for name, value in (CONFIG | changes).items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(values))


def draw_tensors(dtype: torch.dtype = torch.float32, seed: int = 0) -> dict[str, torch.Tensor]:
    hidden, mlp, vocab, kv = 24, 40, 61, 12
    layer = {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (mlp, hidden),
        "mlp.up_proj": (mlp, hidden),
        "mlp.down_proj": (hidden, mlp),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    shapes = {"model.embed_tokens": (vocab, hidden), "model.norm": (hidden,), "lm_head": (vocab, hidden)}
    shapes |= {f"model.layers.{index}.{name}": shape for index in (0, 1) for name, shape in layer.items()}
    generator = torch.Generator().manual_seed(seed)
    return {
        f"{name}.weight": (torch.randn(shape, generator=generator) / 5).to(dtype)
        for name, shape in shapes.items()
    }
