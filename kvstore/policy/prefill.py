"""What prefill costs, learnt from what engines tell of their steps (POLICY 2.2).

    T_pf(p → p+n) = α + β·n + γ·(p·n + n²/2)

Least squares over the steps that prefilled, errors counted in proportion, with a half-life of ten minutes.
What such a step decoded beside is fitted with it (per sequence, and per token of context), so that it is not
taken for prefill. What the samples can't tell apart stays where it was: the last fit weighs in as a faint
prior. No coefficient is below zero.

In Python's own arithmetic and not in numpy's: so that a replay on another machine has the same last bits.
"""

import math
from typing import NamedTuple

from kvstore.core.types import StepTiming

__all__ = ["PrefillCost", "PrefillFit"]

HALF_LIFE_SECONDS = 600.0
# Before so many steps have prefilled, nothing is said of what it costs.
SAMPLES_MIN = 8
# To solve costs twenty microseconds: at a decision, and when there are so many new samples.
FIT_EVERY = 32
# A step counts as no further off than by this factor, once there is a fit: a process that was not run says
# nothing of the model.
SURPRISE_MAX = 4.0
# No step takes less. Where less is expected, perhaps nothing at all, nothing is known of such a step: it is
# taken as it was told.
EXPECTED_SECONDS_MIN = 1e-6
# Of the prior against all samples: a direction in which they differ by less than 3 % says nothing.
PRIOR_WEIGHT = 1e-3
# Below this a sum of squares says nothing any more: with a week of half-lives it comes to where floats have
# few bits left and then none to fade to, so that what stands there is no ratio of anything.
SQUARES_MIN = 1e-200
# Of a sample: the step itself, tokens and context of prefill, sequences and context of decode.
TERMS = range(5)
ALPHA, BETA, GAMMA = TERMS[:3]


class PrefillCost(NamedTuple):
    """α, β and γ in seconds; `pass_tokens`: the most tokens that an engine has prefilled in one step, as two
    steps have told: one alone may be wrong, and nothing would ever take it back."""

    alpha: float
    beta: float
    gamma: float
    pass_tokens: int

    @property
    def beta_passes(self) -> float:
        """β, with what each further pass costs by itself spread over its tokens."""
        return self.beta + self.alpha / self.pass_tokens

    def seconds(self, begin: int, end: int) -> float:
        """To compute the tokens from `begin` to `end` beside others: one pass is made in any case."""
        count = end - begin
        return self.beta_passes * count + self.gamma * (begin * count + count * count / 2)


class PrefillFit:
    """Fed step by step, asked seldom."""

    def __init__(self) -> None:
        # The normal equations: weighted sums of products of terms, and of terms and seconds.
        self._squares = [[0.0 for _ in TERMS] for _ in TERMS]
        self._products = [0.0 for _ in TERMS]
        self._time = 0.0
        self._solved = [0.0 for _ in TERMS]
        self._samples = self._unfitted = 0
        # The most tokens that a step has prefilled, and the next to it.
        self._most_tokens = self._pass_tokens = 1

    def add(self, timing: StepTiming, time: float) -> None:
        """A step that prefilled."""
        terms = (
            1.0,
            timing.prefill_tokens,
            timing.prefill_context,
            timing.decode_sequences,
            timing.decode_context,
        )
        seconds = timing.elapsed_seconds
        expected = 0.0
        if self._samples - self._unfitted >= SAMPLES_MIN:
            expected = sum(
                [coefficient * term for coefficient, term in zip(self._solved, terms, strict=True)]
            )
        if expected >= EXPECTED_SECONDS_MIN:
            seconds = min(max(seconds, expected / SURPRISE_MAX), expected * SURPRISE_MAX)
        if seconds <= timing.elapsed_seconds:
            # Else it has done more than it can have in that time: its tokens say nothing either.
            self._note_tokens(timing.prefill_tokens)
        kept = 0.5 ** ((time - self._time) / HALF_LIFE_SECONDS)
        weight = 1 / seconds**2
        for row, term in zip(self._squares, terms, strict=True):
            scaled = weight * term
            row[:] = [square * kept + scaled * other for square, other in zip(row, terms, strict=True)]
        scaled = weight * seconds
        self._products = [
            product * kept + scaled * term for product, term in zip(self._products, terms, strict=True)
        ]
        self._time = time
        self._samples += 1
        self._unfitted += 1
        if self._unfitted >= FIT_EVERY:
            self._fit()

    def _note_tokens(self, tokens: int) -> None:
        self._pass_tokens = max(self._pass_tokens, min(tokens, self._most_tokens))
        self._most_tokens = max(self._most_tokens, tokens)

    def cost(self) -> PrefillCost | None:
        """None: not known yet."""
        if self._samples < SAMPLES_MIN:
            return None
        if self._unfitted:
            self._fit()
        alpha, beta, gamma = self._solved[: GAMMA + 1]
        return PrefillCost(alpha, beta, gamma, self._pass_tokens)

    def _fit(self) -> None:
        if self._samples == self._unfitted:
            # Nothing is known before: all of it is work on tokens.
            self._solved[BETA] = self._products[BETA] / self._squares[BETA][BETA]
        self._solved = _solve(self._squares, self._products, self._solved)
        self._unfitted = 0


def _solve(squares: list[list[float]], products: list[float], prior: list[float]) -> list[float]:
    """With a faint prior, and no term below zero: the most negative one is left out, until there is none.

    Terms are scaled to the same size, so that the prior weighs the same on each. One that no sample has stays
    as it was, and so does one of which all samples have faded.
    """
    scale = [math.sqrt(squares[term][term]) for term in TERMS]
    left = [term for term in TERMS if squares[term][term] > SQUARES_MIN]
    solved = prior[:]
    while left:
        rows = [
            [squares[i][j] / (scale[i] * scale[j]) + PRIOR_WEIGHT * (i == j) for j in left]
            + [products[i] / scale[i] + PRIOR_WEIGHT * prior[i] * scale[i]]
            for i in left
        ]
        found = _eliminate(rows)
        lowest = min(range(len(left)), key=found.__getitem__)
        if found[lowest] >= 0:
            for term, value in zip(left, found, strict=True):
                solved[term] = value / scale[term]
            break
        solved[left.pop(lowest)] = 0.0
    return solved


def _eliminate(rows: list[list[float]]) -> list[float]:
    """Solves a positive definite system, its right side in the last column."""
    count = len(rows)
    for i in range(count):
        for row in rows[i + 1 :]:
            factor = row[i] / rows[i][i]
            row[i:] = [value - factor * pivot for value, pivot in zip(row[i:], rows[i][i:], strict=True)]
    found = [0.0] * count
    for i in reversed(range(count)):
        known = sum([rows[i][j] * found[j] for j in range(i + 1, count)])
        found[i] = (rows[i][count] - known) / rows[i][i]
    return found
