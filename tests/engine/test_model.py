"""The model against `transformers` on the same random weights, and against itself without cached prefixes."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.weights import Weights, random_weights
from tests.engine.runner import (
    GQA,
    MHA,
    TINY,
    Runner,
    assert_equal_steps,
    assert_hits_change_nothing,
    assert_same_chunks_give_same_bytes,
    continue_with_transformers,
    hit_lengths,
    to_transformers,
)


def draw_ids(count: int, vocab_size: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, vocab_size, count).tolist()


@pytest.fixture(params=TINY, ids=["mha", "gqa", "mqa"])
def tiny(request) -> Weights:
    return random_weights(request.param, seed=7)


@pytest.mark.parametrize("prompt", [1, 16, 75, 530])
def test_tiny_equals_transformers(tiny, prompt):
    ids = draw_ids(prompt, tiny.config.vocab_size)
    ours = Runner(tiny).continue_greedily(ids, 20)
    assert_equal_steps(ours, continue_with_transformers(to_transformers(tiny), ids, 20))


def test_tiny_in_bf16_stays_near_transformers():
    weights = random_weights(GQA, seed=7, dtype=torch.bfloat16)
    ids = draw_ids(75, weights.config.vocab_size)
    runner = Runner(weights)
    ours = runner.prefill(ids, runner.take_table(75))
    theirs = continue_with_transformers(to_transformers(weights), ids, 1)[0]
    torch.testing.assert_close(ours, theirs.float(), atol=0.1, rtol=0)


def test_tiny_hits_change_nothing(tiny):
    ids = draw_ids(300, tiny.config.vocab_size)
    assert_hits_change_nothing(Runner(tiny), ids, hit_lengths(ids))


def test_tiny_same_chunks_give_same_bytes(tiny):
    assert_same_chunks_give_same_bytes(Runner(tiny), draw_ids(400, tiny.config.vocab_size))


def test_sequences_of_a_decode_batch_do_not_touch_each_other(tiny):
    runner = Runner(tiny)
    prompts = [draw_ids(length, tiny.config.vocab_size, seed=length) for length in (1, 15, 16, 150)]
    alone = [runner.continue_greedily(ids, 20) for ids in prompts]

    tables = [runner.take_table(len(ids) + 20) for ids in prompts]
    lens = [len(ids) for ids in prompts]
    steps = [torch.stack([runner.prefill(*each) for each in zip(prompts, tables, strict=True)])]
    while len(steps) < 20:
        lens = [length + 1 for length in lens]
        steps.append(runner.decode(steps[-1].argmax(-1).tolist(), lens, tables))
    for row, expected in enumerate(alone):
        assert_equal_steps(torch.stack(steps)[:, row], expected)


def test_a_chunk_has_the_same_bytes_with_single_tokens_beside_it(tiny):
    """And these the tokens that they would have alone."""
    runner = Runner(tiny)
    vocab_size = tiny.config.vocab_size
    lens = [1, 15, 16, 150]
    prompts = [draw_ids(length, vocab_size, seed=length) for length in lens]
    tables = [runner.take_table(length + 2) for length in lens]
    firsts = [runner.prefill(*each).argmax() for each in zip(prompts, tables, strict=True)]
    ids, lens = [int(first) for first in firsts], [length + 1 for length in lens]
    expected = runner.decode(ids, lens, tables)

    prompt = draw_ids(300, vocab_size)
    alone, beside = runner.take_table(300), runner.take_table(300)
    last = runner.prefill(prompt, alone)
    for cached, end in ((0, 256), (256, 300)):
        mixed = runner.mix(ids, lens, [*tables, beside], prompt[cached:end], cached)
        assert_equal_steps(mixed[:-1], expected)
    assert_equal_steps(mixed[-1:], last[None])
    assert np.array_equal(runner.frames_of(alone, 18), runner.frames_of(beside, 18))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": 0}, "ModelConfig.layers must be positive"),
        ({"rope_theta": float("nan")}, "ModelConfig.rope_theta must be positive"),
        ({"kv_heads": 3}, r"ModelConfig.heads \(4\) must be a multiple of kv_heads \(3\)"),
        ({"head_dim": 13}, "ModelConfig.head_dim must be even"),
    ],
)
def test_bad_configs_are_refused_by_name(change, message):
    with pytest.raises(ValueError, match=message):
        replace(MHA, **change)
