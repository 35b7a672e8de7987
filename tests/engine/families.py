"""Small random models of each family, made by `transformers`, and saved as it saves them."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

__all__ = ["FAMILIES", "SHAPE", "make_family"]

SHAPE: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    # A power of two, so that GGUF, which keeps it in fp32, has the same number.
    "rms_norm_eps": 2.0**-17,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    "eos_token_id": None,
}
# Above 1, so that what the layers make of a context outweighs the last token, which would repeat itself.
GAIN = 1.5
# Of 64 tokens, so that a head's pairs are fast, slow and between.
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
# By name: transformers' prefix of the classes, and what differs from SHAPE.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama, GQA, tied, llama3 rope": ("Llama", {"tie_word_embeddings": True, "rope_parameters": _LLAMA3}),
    "llama, all biases, linear rope": (
        "Llama",
        {
            "attention_bias": True,
            "mlp_bias": True,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
        },
    ),
    "qwen2, MHA": ("Qwen2", {"num_key_value_heads": 4}),
    "qwen3, tied": ("Qwen3", {"head_dim": 32, "num_hidden_layers": 3, "tie_word_embeddings": True}),
    "mistral, MQA": ("Mistral", {"sliding_window": None, "num_key_value_heads": 1, "head_dim": 16}),
}


def make_family(name: str, folder: Path, shard: str = "5GB") -> "LlamaForCausalLM":
    """The model, saved into the folder in shards of that size. No parameter has its neutral value, so that
    none that is forgotten goes unnoticed."""
    import transformers

    prefix, changes = FAMILIES[name]
    config = getattr(transformers, f"{prefix}Config")(**SHAPE | changes)
    model: LlamaForCausalLM = getattr(transformers, f"{prefix}ForCausalLM")(config).eval()
    generator = torch.Generator().manual_seed(len(name))
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in parameter_name:
                parameter.copy_(1 + 0.3 * noise)
            elif parameter_name.endswith("bias"):
                parameter.copy_(0.2 * noise)
            else:
                parameter.copy_(GAIN * noise / parameter.shape[-1] ** 0.5)
    model.save_pretrained(folder, max_shard_size=shard)
    return model
