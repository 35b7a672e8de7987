"""What is learnt of prefill from steps: against coefficients that are known, and what can't be told."""

import math
import random

import pytest
from msgspec.structs import replace

from kvstore.core.types import StepNumber, StepTiming
from kvstore.policy.prefill import SAMPLES_MIN, PrefillCost, PrefillFit

ALPHA, BETA, GAMMA = 2e-3, 4e-5, 1.35e-9
DECODE, DECODE_CONTEXT = 5e-5, 2e-9


def step(before: int, tokens: int, *, sequences: int = 0, factor: float = 1.0) -> StepTiming:
    context = before * tokens + tokens * tokens // 2
    read = sequences * 1_000
    seconds = (ALPHA + BETA * tokens + GAMMA * context + DECODE * sequences + DECODE_CONTEXT * read) * factor
    return StepTiming(
        step=StepNumber(1),
        prefill_tokens=tokens,
        prefill_context=context,
        decode_sequences=sequences,
        decode_context=read,
        elapsed_seconds=seconds,
    )


def fit(*timings: StepTiming, begin: float = 0.0) -> PrefillFit:
    fitted = PrefillFit()
    for number, timing in enumerate(timings):
        fitted.add(timing, begin + number / 10)
    return fitted


def known(fitted: PrefillFit) -> PrefillCost:
    cost = fitted.cost()
    assert cost is not None
    return cost


def prompts(rng: random.Random, count: int, noise: float = 0.0, sequences: int = 0) -> list[StepTiming]:
    return [
        step(
            rng.choice([0, 0, 2_000, 16_000]),
            rng.randint(16, 2_048),
            sequences=rng.randint(0, sequences),
            factor=rng.uniform(1 - noise, 1 + noise),
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("sequences", [0, 64], ids=["prefill alone", "with decode in the same steps"])
def test_the_coefficients_are_found(sequences: int) -> None:
    cost = known(fit(*prompts(random.Random(1), 200, sequences=sequences)))
    for n, p in ((256, 0), (2_048, 0), (8_192, 0), (1_024, 16_000)):
        true = BETA * n + GAMMA * (p * n + n * n / 2)
        found = cost.beta * n + cost.gamma * (p * n + n * n / 2)
        assert found == pytest.approx(true, rel=0.05)


@pytest.mark.parametrize("seed", range(5))
def test_noise_of_a_fifth_leaves_the_sums_within_a_tenth(seed: int) -> None:
    cost = known(fit(*prompts(random.Random(seed), 400, noise=0.2)))
    for n in (256, 2_048, 16_384):
        true = (BETA + ALPHA / cost.pass_tokens) * n + GAMMA * n * n / 2
        assert cost.seconds(0, n) == pytest.approx(true, rel=0.1)


def test_too_few_steps_say_nothing() -> None:
    timings = prompts(random.Random(0), SAMPLES_MIN)
    assert fit(*timings[:-1]).cost() is None
    assert fit(*timings).cost() is not None


def test_steps_that_are_all_alike_leave_it_at_work_on_tokens() -> None:
    """What α, β and γ are can't be told from one length; that it takes so long can."""
    cost = known(fit(*[step(0, 512)] * 50))
    assert cost.alpha + cost.beta * 512 + cost.gamma * 512 * 256 == pytest.approx(
        step(0, 512).elapsed_seconds, rel=0.01
    )
    # Any split makes the same of 512 tokens; the prior keeps nearly all of it with β.
    assert cost.beta * 512 > 0.3 * step(0, 512).elapsed_seconds


def test_what_was_known_stays_when_the_steps_become_all_alike() -> None:
    fitted = fit(*prompts(random.Random(2), 200))
    before = known(fitted)
    for number in range(2_000):
        fitted.add(step(0, 512), 20 + number)
    after = known(fitted)
    assert after.seconds(0, 8_192) == pytest.approx(before.seconds(0, 8_192), rel=0.1)


def test_no_coefficient_is_ever_below_zero() -> None:
    """Longer prompts that took less, as no model does."""
    for seed in range(20):
        rng = random.Random(seed)
        timings = [
            StepTiming(
                step=StepNumber(1),
                prefill_tokens=n,
                prefill_context=n * n // 2,
                elapsed_seconds=rng.uniform(0.5, 1) / n,
            )
            for n in (rng.randint(1, 4_096) for _ in range(40))
        ]
        cost = known(fit(*timings))
        assert min(cost.alpha, cost.beta, cost.gamma) >= 0
        assert cost.seconds(0, 1_000) >= 0


def test_an_engine_that_has_become_half_as_fast_is_known_after_some_half_lives() -> None:
    rng = random.Random(3)
    fitted = fit(*prompts(rng, 300))
    for number in range(600):
        fitted.add(
            step(0, rng.randint(16, 2_048), factor=2.0),
            30 + number * 10,
        )
    assert known(fitted).seconds(0, 2_048) == pytest.approx(
        2 * ((BETA + ALPHA / 2_048) * 2_048 + GAMMA * 2_048**2 / 2), rel=0.1
    )


def test_one_step_that_took_a_thousand_times_as_long_is_no_news_of_the_model() -> None:
    fitted = fit(*prompts(random.Random(4), 200))
    before = known(fitted).seconds(0, 4_096)
    fitted.add(step(0, 1_024, factor=1_000.0), 21.0)
    assert known(fitted).seconds(0, 4_096) == pytest.approx(before, rel=0.1)


@pytest.mark.parametrize("place", [0, 4, 100])
def test_one_step_of_absurdly_many_tokens_makes_no_passes_of_that_length(place: int) -> None:
    """With the first steps nothing is known that it could be held against, so nobody is believed alone."""
    timings = prompts(random.Random(5), 200)
    absurd = StepTiming(
        step=StepNumber(1), prefill_tokens=1 << 20, prefill_context=1 << 39, elapsed_seconds=0.05
    )
    most = sorted(each.prefill_tokens for each in timings)[-2:]
    assert known(fit(*timings[:place], absurd, *timings[place:])).pass_tokens in most
    assert known(fit(*timings)).pass_tokens == most[0]


def test_of_steps_that_did_more_than_is_believed_none_makes_passes_of_that_length() -> None:
    fitted = fit(*prompts(random.Random(6), 200))
    before = known(fitted).pass_tokens
    for number in range(3):
        fitted.add(replace(step(0, 1 << 16), elapsed_seconds=0.05), 21.0 + number)
    assert known(fitted).pass_tokens == before
    for number in range(2):
        fitted.add(step(0, 8_192), 25.0 + number)
    assert known(fitted).pass_tokens == 8_192


def test_further_passes_cost_and_the_first_is_free() -> None:
    cost = PrefillCost(alpha=1.0, beta=0.01, gamma=0.0, pass_tokens=100)
    assert cost.seconds(0, 300) == pytest.approx(3.0 + 3.0)
    assert cost.seconds(200, 300) == pytest.approx(2.0)


def test_a_step_that_should_take_no_time_at_all_is_learnt_from() -> None:
    """The more was prefilled the less it took: so all of the time is the decoded sequences', as it seems."""
    rng, fitted = random.Random(1), PrefillFit()
    for number in range(100):
        tokens, sequences = rng.randint(1, 64), rng.randint(100, 200)
        timing = StepTiming(
            step=StepNumber(1),
            prefill_tokens=tokens,
            prefill_context=tokens * tokens // 2,
            decode_sequences=sequences,
            decode_context=sequences,
            elapsed_seconds=sequences * 1e-3 - tokens * 1e-4,
        )
        fitted.add(timing, number / 10)
    assert known(fitted)[:3] == (0, 0, 0)
    for number in range(100):
        fitted.add(step(0, 512), 10 + number / 10)
    assert known(fitted).seconds(0, 512) > 0


@pytest.mark.parametrize("seed", [*range(10), 34, 112, 171, 226, 256])
def test_whatever_engines_tell_there_is_a_cost(seed: int) -> None:
    """Within the bounds of what a step may be, and nothing like a model."""
    rng, fitted = random.Random(seed), PrefillFit()
    for number in range(200):
        tokens, sequences = rng.choice([1, 16, 512, 1 << 20]), rng.choice([0, 1, 1_000])
        timing = StepTiming(
            step=StepNumber(1),
            prefill_tokens=tokens,
            prefill_context=tokens * rng.choice([1, 1 << 20]),
            decode_sequences=sequences,
            decode_context=sequences * rng.choice([1, 1 << 20]),
            elapsed_seconds=10 ** rng.uniform(-6, 3.5),
        )
        fitted.add(timing, number * rng.choice([0.01, 10]))
        if number >= SAMPLES_MIN:
            cost = known(fitted)
            assert all(0 <= coefficient < math.inf for coefficient in cost[:3])


@pytest.mark.parametrize("pause", [0.0, 643_000.0])
def test_what_was_seen_too_long_ago_stays_as_it_was(pause: float) -> None:
    """A week of half-lives takes sums to where floats end: no ratio of what is left there is a cost."""
    decoding = [step(0, 64 * number, sequences=number % 7) for number in range(1, 100)]
    fitted = fit(*decoding)
    begin = 10 + pause
    for number in range(2_600):
        fitted.add(step(0, 64 * (1 + number % 50)), begin + 300 * number)
    begin += 300 * 2_600
    for number, timing in enumerate(decoding[:40]):
        fitted.add(timing, begin + number / 10)
    cost = known(fitted)
    assert cost.beta == pytest.approx(BETA, rel=1e-3)
    assert cost.alpha == pytest.approx(ALPHA, rel=1e-2)
