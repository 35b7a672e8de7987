"""GGUF files of each architecture: the same model as the folder that it was made from."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.formats.folder import Folder
from engine.formats.gguf_model import GGUFModel
from engine.formats.loading import load_weights
from engine.refused import ModelRefused
from engine.rope import DividedRope, inverse_frequencies
from tests.engine.families import make_family
from tests.engine.folders import draw_tensors
from tests.engine.gguf_writer import gguf_name, write_gguf, write_keys
from tests.engine.runner import Runner, assert_equal_steps, continue_with_transformers

LLAMA3, BIASES = "llama, GQA, tied, llama3 rope", "llama, all biases, linear rope"
HEADS = {"attention__key_length": 32, "attention__value_length": 32}


@pytest.mark.parametrize(
    ("family", "architecture", "keys"),
    [
        (BIASES, "llama", {"rope__scaling__type": "linear", "rope__scaling__factor": 4.0}),
        ("mistral, MQA", "llama", {"rope__dimension_count": 16, "attention__key_length": 16}),
        ("qwen2, MHA", "qwen2", {}),
        ("qwen3, tied", "qwen3", HEADS),
    ],
)
def test_the_same_model_in_both_forms_has_the_same_digest(tmp_path, family, architecture, keys):
    """The digest is over config and weights in memory, so it tells whether all of it is the same."""
    model = make_family(family, tmp_path)
    write_gguf(model, tmp_path / "m.gguf", architecture, **keys)
    of_file = load_weights(GGUFModel(tmp_path / "m.gguf"))
    of_folder = load_weights(Folder(tmp_path))
    assert of_file.config == of_folder.config
    assert of_file.digest == of_folder.digest
    other = load_weights(Folder(tmp_path), torch.bfloat16)
    assert other.digest != of_folder.digest


def test_llama3s_rule_comes_as_a_tensor(tmp_path):
    model = make_family(LLAMA3, tmp_path)
    ruled = Folder(tmp_path).config
    plain = inverse_frequencies(ruled.head_dim, ruled.rope_theta, None)
    divisors = plain / inverse_frequencies(ruled.head_dim, ruled.rope_theta, ruled.rope_scaling)
    assert len(set(divisors.tolist())) > 2
    write_gguf(model, tmp_path / "m.gguf", "llama", {"rope_freqs.weight": divisors})
    files = GGUFModel(tmp_path / "m.gguf")
    assert files.config.rope_scaling == DividedRope(divisors=tuple(divisors.tolist()))
    ids = np.random.default_rng(3).integers(0, 199, 300).tolist()
    ours = Runner(load_weights(files)).continue_greedily(ids, 24)
    assert_equal_steps(ours, continue_with_transformers(model, ids, 24))


# ---- what is refused ----

KEYS: dict[str, Any] = {
    "context_length": 256,
    "embedding_length": 24,
    "block_count": 2,
    "feed_forward_length": 40,
    "attention__head_count": 4,
    "attention__head_count_kv": 2,
    "attention__layer_norm_rms_epsilon": 1e-5,
}


def write(path: Path, architecture: str = "llama", **changes: Any) -> Path:
    """A file whose tensors are those of the folders that are written by hand."""
    tensors = {gguf_name(name): tensor for name, tensor in draw_tensors().items()}
    keys = {name: value for name, value in (KEYS | changes).items() if value is not ...}
    write_keys(path, architecture, keys, tensors)
    return path


@pytest.mark.parametrize(
    ("architecture", "changes", "message"),
    [
        ("gemma", {}, "general.architecture = 'gemma': it is not supported"),
        ("llama", {"split.count": 3}, "split.count = 3: it is one part of several"),
        ("llama", {"expert_count": 8}, "llama.expert_count = 8: a mixture of experts"),
        ("llama", {"attention__sliding_window": 64}, "llama.attention.sliding_window = 64: sliding-window"),
        ("llama", {"rope__scaling__type": "yarn"}, "llama.rope.scaling.type = 'yarn': this rule"),
        ("llama", {"rope__scaling__factor": -1.0}, "llama.rope.scaling.factor = -1.0: a positive number"),
        ("llama", {"rope__dimension_count": 4}, "llama.rope.dimension_count = 4: it must be as long as a"),
        ("llama", {"attention__value_length": 8}, "llama.attention.value_length = 8: it must be as long"),
        ("llama", {"attention__key_length": 7}, "llama.attention.key_length = 7: a head of 7 dimensions"),
        ("llama", {"attention__head_count_kv": [2, 1]}, "llama.attention.head_count_kv = [2, 1]: a positive"),
        ("llama", {"logit_scale": 2.0}, "llama.logit_scale = 2.0: the key is not known"),
        ("llama", {"block_count": ...}, "llama.block_count is missing: a positive integer"),
        ("llama", {"block_count": 3}, "tensors ['blk.2.attn_norm.weight', "),
        ("llama", {"block_count": 1}, "tensors ['blk.1.attn_norm.weight', "),
        ("llama", {"feed_forward_length": 41}, "blk.0.ffn_gate.weight of shape [40, 24]: the config asks"),
        ("qwen2", {}, "tensors ['blk.0.attn_k.bias', "),
        ("qwen3", {}, "tensors ['blk.0.attn_k_norm.weight', "),
    ],
)
def test_what_is_not_supported_is_refused_by_its_key(tmp_path, architecture, changes, message):
    path = write(tmp_path / "m.gguf", architecture, **changes)
    with pytest.raises(ModelRefused) as refused:
        GGUFModel(path)
    assert message in str(refused.value)
    assert str(refused.value).startswith(f"{path}: ")
    assert "; remedy: " in str(refused.value)


def test_a_file_that_is_cut_off_is_refused(tmp_path):
    path = write(tmp_path / "m.gguf")
    GGUFModel(path)
    content = path.read_bytes()
    for length in {*range(0, 2000, 7), *range(2000, len(content), 997), len(content) - 1}:
        path.write_bytes(content[:length])
        with pytest.raises(ModelRefused, match="it is no GGUF file, or cut off"):
            GGUFModel(path)


def test_a_file_that_changes_later_changes_nothing_in_memory(tmp_path):
    path = write(tmp_path / "m.gguf")
    weights = load_weights(GGUFModel(path))
    embedding, down = weights.embedding.clone(), weights.layers[1].down.clone()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 4)
        file.write(bytes(size - size // 4))
    assert torch.equal(weights.embedding, embedding)
    assert torch.equal(weights.layers[1].down, down)
