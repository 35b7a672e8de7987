"""Rotary frequencies against those of `transformers`."""

import pytest
import torch

from engine.rope import DividedRope, LinearRope, Llama3Rope, inverse_frequencies

LLAMA3 = Llama3Rope(
    factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_context_length=8192
)


@pytest.mark.parametrize(
    ("scaling", "parameters"),
    [
        (None, {"rope_type": "default"}),
        (LinearRope(factor=3.0), {"rope_type": "linear", "factor": 3.0}),
        (
            LLAMA3,
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
        ),
    ],
)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_frequencies_are_those_of_transformers_to_the_bit(scaling, parameters, head_dim):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=head_dim, num_attention_heads=1, rope_parameters={"rope_theta": 5e5, **parameters}
    )
    assert torch.equal(inverse_frequencies(head_dim, 5e5, scaling), LlamaRotaryEmbedding(config).inv_freq)


def test_llama3s_rule_leaves_fast_pairs_and_divides_slow_ones():
    divisors = inverse_frequencies(128, 5e5, None) / inverse_frequencies(128, 5e5, LLAMA3)
    assert divisors[0] == 1.0
    assert divisors[-1] == 8.0
    assert len(divisors.unique()) > 4
    assert torch.equal(divisors.sort().values, divisors)


def test_divisors_stand_one_for_each_pair():
    plain = inverse_frequencies(8, 1e4, None)
    divided = inverse_frequencies(8, 1e4, DividedRope(divisors=(1.0, 2.0, 4.0, 8.0)))
    assert torch.equal(divided * torch.tensor([1.0, 2.0, 4.0, 8.0]), plain)
