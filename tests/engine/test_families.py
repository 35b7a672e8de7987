"""Llama, Qwen2, Qwen3 and Mistral from folders that `transformers` wrote, against `transformers`."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from engine.formats.folder import Folder
from engine.formats.loading import load_weights
from tests.engine.families import FAMILIES, make_family
from tests.engine.runner import (
    PREFILL_GRID,
    Runner,
    assert_equal_steps,
    assert_hits_change_nothing,
    assert_same_chunks_give_same_bytes,
    continue_with_transformers,
)

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

# Logits here reach 8, where neighbouring numbers are 2^-5 apart in bf16 and 2^-8 in fp16 (8 and 11 bits). All
# results on the way are rounded to that, and sums in another order round otherwise: 16 such steps.
HALF_TOLERANCES = {torch.bfloat16: 16 * 2**-5, torch.float16: 16 * 2**-8}
# And against fp32 with the same weights, neither implementation may be much farther off than the other.
HALF_ERROR_RATIO_MAX = 1.5


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory) -> "tuple[Path, LlamaForCausalLM]":
    folder = tmp_path_factory.mktemp("family")
    return folder, make_family(request.param, folder)


def draw_ids(count: int) -> list[int]:
    return np.random.default_rng(count).integers(0, 199, count).tolist()


def test_greedy_tokens_equal_those_of_transformers(family):
    folder, model = family
    ids = draw_ids(PREFILL_GRID + 50)
    ours = Runner(load_weights(Folder(folder))).continue_greedily(ids, 24)
    assert_equal_steps(ours, continue_with_transformers(model, ids, 24))
    assert len(set(ours.argmax(-1).tolist())) > 4


@pytest.mark.parametrize("dtype", HALF_TOLERANCES)
def test_half_precision_is_as_good_as_that_of_transformers(family, dtype):
    """A prompt, then given tokens one by one, so that one early difference does not lead to others."""
    folder, _ = family
    ids, prompt = draw_ids(60), 50
    runner = Runner(load_weights(Folder(folder), dtype))
    table = runner.take_table(len(ids))
    steps = [runner.prefill(ids[:prompt], table)]
    steps += [runner.decode([ids[at]], [at + 1], [table])[0] for at in range(prompt, len(ids))]
    ours, reference = torch.stack(steps), read_with_transformers(folder, dtype)
    with torch.inference_mode():
        theirs = reference(torch.tensor([ids])).logits[0, prompt - 1 :].float()
        exact = reference.float()(torch.tensor([ids])).logits[0, prompt - 1 :]
    torch.testing.assert_close(ours, theirs, atol=HALF_TOLERANCES[dtype], rtol=0)
    assert rms(ours - exact) < HALF_ERROR_RATIO_MAX * rms(theirs - exact)


def test_hits_change_nothing(family):
    folder, _ = family
    runner = Runner(load_weights(Folder(folder)))
    assert_hits_change_nothing(runner, draw_ids(PREFILL_GRID + 50), [1, 7, 16, 18])
    assert_same_chunks_give_same_bytes(runner, draw_ids(PREFILL_GRID + 50))


def read_with_transformers(folder: Path, dtype: torch.dtype) -> "LlamaForCausalLM":
    from transformers import AutoModelForCausalLM

    model: LlamaForCausalLM = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    return model


def rms(differences: torch.Tensor) -> float:
    return differences.square().mean().sqrt().item()
