"""config.json as `transformers` writes it, made into a `ModelConfig`.

Defaults are those of `transformers`' own classes, which differ: a config.json leaves out what its class has
as a default. What changes the computation and is not supported is refused by its field.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.config import ModelConfig
from engine.formats.fields import Fields
from engine.refused import ModelRefused
from engine.rope import LinearRope, Llama3Rope, RopeScaling

__all__ = ["read_config"]

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
_SIZES = {
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "context_length": "max_position_embeddings",
    "rms_norm_eps": "rms_norm_eps",
}
# What these classes take where config.json leaves it out; Llama takes what other fields say.
_NEEDED = {
    "MistralForCausalLM": ("num_key_value_heads",),
    "Qwen2ForCausalLM": ("num_key_value_heads",),
    "Qwen3ForCausalLM": ("num_key_value_heads", "head_dim"),
}
_ROPE_TYPES = ("default", "linear", "llama3")


def read_config(path: Path, values: Mapping[str, Any], *, has_output: bool) -> ModelConfig:
    """values: the file's. has_output: whether the weights have a matrix for the logits."""
    fields = Fields(path, values.get)
    architecture = _read_architecture(fields)
    _check_plain(fields)
    _check_window(fields, values, architecture)
    for name in _NEEDED.get(architecture, ()):
        fields.integer(name)
    if not has_output and not fields.flag("tie_word_embeddings"):
        fields.refuse("tie_word_embeddings", "and the weights have no lm_head.weight", "fetch all weights")
    # Llama and Qwen3 have one flag for all four projections of the attention; Qwen2 has no flag.
    bias = architecture in ("LlamaForCausalLM", "Qwen3ForCausalLM") and fields.flag("attention_bias")
    theta, scaling = _read_rope(fields)
    return ModelConfig(
        vocab_size=fields.integer("vocab_size"),
        rope_theta=theta,
        rope_scaling=scaling,
        # As `transformers` does: a matrix that is there is used, whatever the config says.
        tied_embeddings=not has_output,
        qkv_bias=bias or architecture == "Qwen2ForCausalLM",
        attention_output_bias=bias,
        mlp_bias=architecture == "LlamaForCausalLM" and fields.flag("mlp_bias"),
        qk_norm=architecture == "Qwen3ForCausalLM",
        **fields.sizes(_SIZES),
    )


def _read_architecture(fields: Fields) -> str:
    match fields.get("architectures"):
        case [str(architecture)] if architecture in ARCHITECTURES:
            return architecture
    fields.refuse("architectures", "it is not supported", f"choose one of {', '.join(ARCHITECTURES)}")


def _check_plain(fields: Fields) -> None:
    """Refuses what makes another model of it."""
    if fields.get("quantization_config") is not None:
        remedy = "take the model in BF16, F16 or F32, or quantised as a GGUF file"
        fields.refuse("quantization_config", "quantised weights are not supported", remedy)
    if fields.get("auto_map") is not None:
        remedy = "choose a model that transformers runs without trust_remote_code"
        fields.refuse("auto_map", "code that comes with a model is not run", remedy)
    if fields.get("hidden_act") not in (None, "silu"):
        fields.refuse("hidden_act", "only silu is supported", "choose a model with SwiGLU")
    for name in ("num_experts", "num_local_experts", "n_routed_experts"):
        if fields.get(name):
            fields.refuse(name, "a mixture of experts is not supported", "choose a dense model")


def _check_window(fields: Fields, values: Mapping[str, Any], architecture: str) -> None:
    """A window at least as long as the context is none."""
    layer_types = fields.get("layer_types") or []
    if any(kind != "full_attention" for kind in layer_types):
        fields.refuse("layer_types", "only full_attention is supported", "choose a model with nothing else")
    if architecture.startswith("Qwen") and not fields.flag("use_sliding_window"):
        return
    context_length = fields.integer("max_position_embeddings")
    if architecture == "MistralForCausalLM" and "sliding_window" not in values:
        window = 4096
    else:
        window = fields.integer("sliding_window", context_length)
    if window < context_length:
        why = f"attention that ends after {window} tokens is not supported"
        remedy = (
            "choose a model without it (Mistral 7B from v0.2 on), or keep to contexts within the window: "
            f"set sliding_window to null and max_position_embeddings to {window}"
        )
        fields.refuse("sliding_window", why, remedy)


def _read_rope(fields: Fields) -> tuple[float, RopeScaling]:
    """Base and rule. `rope_parameters` holds both; older files have `rope_scaling` and `rope_theta`."""
    name = "rope_parameters" if fields.get("rope_parameters") else "rope_scaling"
    values = fields.get(name) or {}
    if not isinstance(values, dict):
        fields.refuse(name, "an object is needed", "take the file as the model's publisher has it")
    rope = Fields(fields.path, values.get, f"{name}.")
    for place in (fields, rope):
        if place.get("partial_rotary_factor") not in (None, 1.0):
            remedy = "choose a model whose heads are rotated whole"
            place.refuse("partial_rotary_factor", "only 1 is supported", remedy)
    theta = rope.number("rope_theta", fields.number("rope_theta", 1e4))
    kind = rope.get("rope_type") or rope.get("type") or "default"
    match kind:
        case "default":
            return theta, None
        case "linear":
            return theta, LinearRope(factor=rope.number("factor"))
        case "llama3":
            return theta, _read_llama3(fields, rope)
    what = f"{name}.rope_type = {kind!r}"
    remedy = f"choose a model with one of {', '.join(_ROPE_TYPES)}"
    raise ModelRefused(fields.path, what, "this rule is not supported", remedy)


def _read_llama3(fields: Fields, rope: Fields) -> Llama3Rope:
    # A length beside the rule goes before one in it, as in `transformers`.
    length = "original_max_position_embeddings"
    place = rope if fields.get(length) is None else fields
    scaling = Llama3Rope(
        factor=rope.number("factor"),
        low_frequency_factor=rope.number("low_freq_factor"),
        high_frequency_factor=rope.number("high_freq_factor"),
        original_context_length=place.integer(length),
    )
    if scaling.high_frequency_factor <= scaling.low_frequency_factor:
        remedy = "take the file as the model's publisher has it"
        rope.refuse("high_freq_factor", "it must be above low_freq_factor", remedy)
    return scaling
