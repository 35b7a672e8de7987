"""How tokens are drawn: by the model's distribution, and by nothing but the request's own numbers."""

import math

import pytest
import torch

from engine.sampling import GREEDY, Sampling, choose

# Probabilities of four tokens, as logits.
SHARES = [0.1, 0.6, 0.25, 0.05]
LOGITS = torch.tensor([[math.log(share) for share in SHARES]])


def drawn(sampling: Sampling, count: int, sample: int = 0) -> list[int]:
    draws = [(sampling, sample, place) for place in range(count)]
    return [choice.token for choice in choose(LOGITS.expand(count, -1), draws)]


def shares(tokens: list[int]) -> list[float]:
    return [tokens.count(token) / len(tokens) for token in range(len(SHARES))]


def test_tokens_come_as_often_as_the_model_thinks():
    assert shares(drawn(Sampling(temperature=1.0, seed=3), 4000)) == pytest.approx(SHARES, abs=0.03)


def test_a_low_temperature_sharpens_and_a_high_one_flattens():
    squares = [share**2 for share in SHARES]
    roots = [share**0.5 for share in SHARES]
    sharp = shares(drawn(Sampling(temperature=0.5, seed=4), 4000))
    flat = shares(drawn(Sampling(temperature=2.0, seed=4), 4000))
    assert sharp == pytest.approx([square / sum(squares) for square in squares], abs=0.03)
    assert flat == pytest.approx([root / sum(roots) for root in roots], abs=0.03)


def test_top_p_leaves_out_what_is_beyond_the_nucleus():
    tokens = drawn(Sampling(temperature=1.0, top_p=0.7, seed=5), 4000)
    assert shares(tokens) == pytest.approx([0.0, 0.6 / 0.85, 0.25 / 0.85, 0.0], abs=0.03)
    assert set(drawn(Sampling(temperature=1.0, top_p=1e-6, seed=5), 100)) == {1}


def test_a_temperature_near_zero_is_greedy():
    assert set(drawn(Sampling(temperature=1e-6, seed=1), 100)) == {1}


def test_a_draw_depends_on_seed_sample_and_place_alone():
    sampling = Sampling(temperature=1.0, seed=7)
    tokens = drawn(sampling, 50)
    again = [choose(LOGITS, [(sampling, 0, place)])[0].token for place in range(50)]
    assert again == tokens
    assert drawn(sampling, 50, sample=1) != tokens
    assert drawn(Sampling(temperature=1.0, seed=8), 50) != tokens


def test_rows_of_one_batch_are_chosen_each_in_its_own_way():
    rows = torch.cat([LOGITS, LOGITS.flip(-1)])
    greedy, also = choose(rows, [(GREEDY, 0, 0), (GREEDY, 0, 0)])
    assert (greedy.token, also.token) == (1, 2)
    assert greedy.margin == pytest.approx(math.log(0.6 / 0.25))
    first, second = choose(rows, [(GREEDY, 0, 0), (Sampling(temperature=2.0, seed=1), 0, 9)])
    assert first == greedy
    assert second.token == 2 or second.margin < 0


@pytest.mark.parametrize(
    "wrong", [{"temperature": -0.1}, {"temperature": 2.1}, {"top_p": 0.0}, {"top_p": 1.1}]
)
def test_what_is_out_of_range_is_named(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Sampling(**wrong)
