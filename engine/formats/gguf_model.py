"""A model in a GGUF file: its config by the keys, and its tensors by the names, of llama.cpp.

Architectures `llama` (also Mistral and SmolLM), `qwen2` and `qwen3`. A key of the architecture that is not
known here is refused, because it may change what the model computes.
Tests: tests/engine/test_gguf.py, test_smollm2.py.
"""

import re
from pathlib import Path

import torch

from engine.config import ModelConfig
from engine.formats.fields import Fields
from engine.formats.gguf_file import GGUFFile
from engine.formats.gguf_tokenizer import read_tokenizer
from engine.formats.tensors import EMBEDDING, FINAL_NORM, OUTPUT, check_tensors, layer_name
from engine.refused import ModelRefused
from engine.rope import DividedRope, LinearRope, RopeScaling
from engine.tokenizer import Tokenizer

__all__ = ["GGUFModel"]

ARCHITECTURES = ("llama", "qwen2", "qwen3")
# As they follow the architecture's name in a key.
_SIZES = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "layers": "block_count",
    "heads": "attention.head_count",
    "kv_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "context_length": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}
_SCALING = "rope.scaling.type"
_OTHER_KEYS = (
    "vocab_size",
    "attention.value_length",
    "rope.freq_base",
    "rope.dimension_count",
    _SCALING,
    "rope.scaling.factor",
    # Said of what the rule was made for; what it computes does not depend on them.
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
)
# Keys that must be 0, and what else they would mean.
_ZERO_KEYS = {
    "expert_count": ("a mixture of experts", "choose a dense model"),
    "expert_used_count": ("a mixture of experts", "choose a dense model"),
    "attention.sliding_window": ("sliding-window attention", "choose a model that attends to all tokens"),
}
_ROPE_DIVISORS = "rope_freqs.weight"
_GLOBAL_NAMES = {"token_embd.weight": EMBEDDING, "output_norm.weight": FINAL_NORM, "output.weight": OUTPUT}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_UNKNOWN = "unknown: "
_GGUF_NAMES = {ours: name for name, ours in (_GLOBAL_NAMES | _LAYER_NAMES).items()}


class GGUFModel:
    """Opens the file and checks it whole: what it has no place for is refused."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = GGUFFile(path)
        self._architecture = _read_architecture(self._file)
        self.config = _read_config(self._file, self._architecture)
        shapes = {
            _to_transformers(name): shape
            for name, shape in self._file.shapes.items()
            if name != _ROPE_DIVISORS
        }
        check_tensors(path, self.config, shapes, _to_gguf)

    def read_tensor(self, name: str) -> torch.Tensor:
        """In fp32, rows of Q and K as `transformers` has them."""
        tensor = self._file.read_tensor(_to_gguf(name))
        if self._architecture == "llama":
            if ".q_proj." in name:
                return _to_half_rotation(tensor, self.config.heads)
            if ".k_proj." in name:
                return _to_half_rotation(tensor, self.config.kv_heads)
        return tensor

    def load_tokenizer(self) -> Tokenizer:
        return read_tokenizer(self._file)


def _read_architecture(file: GGUFFile) -> str:
    architecture = file.get("general.architecture")
    if architecture not in ARCHITECTURES:
        what = f"general.architecture = {architecture!r}"
        raise ModelRefused(
            file.path, what, "it is not supported", f"choose one of {', '.join(ARCHITECTURES)}"
        )
    if (count := file.get("split.count") or 1) > 1:
        remedy = "join them with llama.cpp's llama-gguf-split --merge"
        raise ModelRefused(file.path, f"split.count = {count}", "it is one part of several", remedy)
    return str(architecture)


def _read_config(file: GGUFFile, architecture: str) -> ModelConfig:
    fields = Fields(file.path, lambda name: file.get(f"{architecture}.{name}"), f"{architecture}.")
    known = {*_SIZES.values(), *_OTHER_KEYS, *_ZERO_KEYS}
    for key in sorted(file.keys):
        name = key.removeprefix(f"{architecture}.")
        if name != key and name not in known:
            fields.refuse(name, "the key is not known, and may change the model", "choose a plain model")
    for name, (meaning, remedy) in _ZERO_KEYS.items():
        if fields.get(name):
            fields.refuse(name, f"{meaning} is not supported", remedy)
    sizes = fields.sizes(_SIZES)
    for name in ("attention.value_length", "rope.dimension_count"):
        if fields.integer(name, sizes["head_dim"]) != sizes["head_dim"]:
            why = f"it must be as long as a head, {sizes['head_dim']}"
            fields.refuse(name, why, "choose a model whose heads are rotated whole")
    tensors = file.shapes
    return ModelConfig(
        vocab_size=tensors.get("token_embd.weight", (1,))[0],
        rope_theta=fields.number("rope.freq_base", 1e4),
        rope_scaling=_read_scaling(file, fields, sizes["head_dim"]),
        tied_embeddings="output.weight" not in tensors,
        qkv_bias=architecture == "qwen2" or "blk.0.attn_q.bias" in tensors,
        attention_output_bias="blk.0.attn_output.bias" in tensors,
        mlp_bias="blk.0.ffn_down.bias" in tensors,
        qk_norm=architecture == "qwen3",
        **sizes,
    )


def _read_scaling(file: GGUFFile, fields: Fields, head_dim: int) -> RopeScaling:
    """llama.cpp takes a factor without a type for a linear one, and has Llama 3's rule as a tensor."""
    kind = fields.get(_SCALING) or "linear"
    if kind not in ("none", "linear"):
        fields.refuse(_SCALING, "this rule is not supported", "choose a model with none, linear or llama3")
    factor = fields.number("rope.scaling.factor", 1.0) if kind == "linear" else 1.0
    if _ROPE_DIVISORS not in file.shapes:
        return None if factor == 1.0 else LinearRope(factor=factor)
    if file.shapes[_ROPE_DIVISORS] != (head_dim // 2,) or factor != 1.0:
        what = f"tensor {_ROPE_DIVISORS} of shape {list(file.shapes[_ROPE_DIVISORS])}, factor {factor}"
        why = f"a shape of {[head_dim // 2]} and no factor are needed"
        raise ModelRefused(file.path, what, why, "convert the model again with a newer llama.cpp")
    return DividedRope(divisors=tuple(file.read_tensor(_ROPE_DIVISORS).tolist()))


def _to_transformers(name: str) -> str:
    """A tensor's name; one that is not known is marked, and refused as surplus."""
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if match is None or match[2] not in _LAYER_NAMES:
        return _GLOBAL_NAMES.get(name, _UNKNOWN + name)
    return layer_name(int(match[1]), f"{_LAYER_NAMES[match[2]]}.{match[3]}")


def _to_gguf(name: str) -> str:
    """The other way round."""
    match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)", name)
    if match is None:
        return _GGUF_NAMES.get(name, name.removeprefix(_UNKNOWN))
    return f"blk.{match[1]}.{_GGUF_NAMES[match[2]]}.{match[3]}"


def _to_half_rotation(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Undo the order of Q and K rows in `llama` files, `[heads * head_dim, ...]`, biases included.

    llama.cpp rotates neighbouring pairs (0, 1), (2, 3), … there, so its converter interleaves the halves of
    each head (`permute` in convert_hf_to_gguf.py). The model here rotates dimension i with i + head_dim / 2,
    as transformers does, and llama.cpp itself in all other architectures.
    """
    pairs = rows.view(heads, len(rows) // heads // 2, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)
