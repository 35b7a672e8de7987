"""GGUF files of each architecture: the same model as the folder that it was made from."""

import numpy as np
import pytest
import torch

from engine.formats.folder import Folder
from engine.formats.gguf_model import GGUFModel
from engine.formats.loading import load_weights
from engine.rope import DividedRope, inverse_frequencies
from tests.engine.families import make_family
from tests.engine.gguf_writer import write_gguf
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
