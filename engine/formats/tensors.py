"""Which tensors a model of some config has, by the names of `transformers`, and of which shapes."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from engine.config import ModelConfig
from engine.refused import ModelRefused

__all__ = ["EMBEDDING", "FINAL_NORM", "OUTPUT", "check_tensors", "layer_name"]

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
OUTPUT = "lm_head.weight"

Shape = tuple[int, ...]


def layer_name(index: int, name: str) -> str:
    return f"model.layers.{index}.{name}"


def check_tensors(
    path: Path,
    config: ModelConfig,
    shapes: Mapping[str, Shape],
    spell: Callable[[str], str] = str,
) -> None:
    """Refuses what is missing, of another shape, or has no place in the model: it would be left out of what
    is computed.

    spell: from a tensor's name here to its name in the file.
    """
    wanted = dict(_model_shapes(config))
    if missing := sorted(wanted.keys() - shapes.keys()):
        what = f"tensors {[*map(spell, missing[:3])]} ({len(missing)} in all)"
        raise ModelRefused(path, what, "they are missing", "fetch the model's files again, all of them")
    if surplus := sorted(shapes.keys() - wanted.keys()):
        what = f"tensors {[*map(spell, surplus[:3])]} ({len(surplus)} in all)"
        why = "a model of this config has no place for them"
        raise ModelRefused(path, what, why, "choose a plain Llama, Qwen2, Qwen3 or Mistral")
    for name, shape in wanted.items():
        if shapes[name] != shape:
            what = f"tensor {spell(name)} of shape {list(shapes[name])}"
            why = f"the config asks for {list(shape)}"
            raise ModelRefused(path, what, why, "take config and weights of the same model")


def _model_shapes(config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    yield EMBEDDING, (config.vocab_size, config.hidden_size)
    yield FINAL_NORM, (config.hidden_size,)
    if not config.tied_embeddings:
        yield OUTPUT, (config.vocab_size, config.hidden_size)
    for index in range(config.layers):
        for name, shape in _layer_shapes(config):
            yield layer_name(index, name), shape


def _layer_shapes(config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    hidden, mlp, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    linears = [
        ("self_attn.q_proj", config.heads * head_dim, hidden, config.qkv_bias),
        ("self_attn.k_proj", config.kv_heads * head_dim, hidden, config.qkv_bias),
        ("self_attn.v_proj", config.kv_heads * head_dim, hidden, config.qkv_bias),
        ("self_attn.o_proj", hidden, config.heads * head_dim, config.attention_output_bias),
        ("mlp.gate_proj", mlp, hidden, config.mlp_bias),
        ("mlp.up_proj", mlp, hidden, config.mlp_bias),
        ("mlp.down_proj", hidden, mlp, config.mlp_bias),
    ]
    for name, outputs, inputs, has_bias in linears:
        yield f"{name}.weight", (outputs, inputs)
        if has_bias:
            yield f"{name}.bias", (outputs,)
    yield "input_layernorm.weight", (hidden,)
    yield "post_attention_layernorm.weight", (hidden,)
    if config.qk_norm:
        yield "self_attn.q_norm.weight", (head_dim,)
        yield "self_attn.k_norm.weight", (head_dim,)
