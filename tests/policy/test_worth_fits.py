"""What is learned is fitted a little with each use: none does much of it, and all of it is done."""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType

import numpy as np
import pytest

from kvstore.policy import returns
from kvstore.policy.ages import BINS, EDGES, RUNS_AT_ONCE, RUNS_MAX, Runs
from kvstore.policy.kinds import COARSE_MAX, KINDS_MAX, Kinds
from kvstore.policy.returns import KINDS_A_USE, PERIOD, PERIOD_FIRST, STEP_EFFORT, USE_EFFORT, Returns
from kvstore.policy.worth import Worth
from tests.policy.uses import use

# What is called for a use at the most, and for a kind that comes newly with it.
CALLS_A_USE, CALLS_A_KIND = 500, 12


def all_kinds() -> Kinds:
    kinds, generator = Kinds(), np.random.default_rng(1)
    uses = np.repeat(np.array([0, 1, 2, 3, 6, 20], np.uint8), 20)
    nothing = np.full(uses.size, -1.0), np.zeros(uses.size, np.uint8)
    for turn in range(6):
        # What is left for the turn alone, before all else; then all that there is room for.
        for permuted in (uses, uses[::-1], *(generator.permutation(uses) for _ in range(40))):
            kinds.of((turn, 0, 0, 0, 0), permuted, *nothing)
    while kinds.count < KINDS_MAX - COARSE_MAX:
        turn, *others = generator.integers(0, (6, 8, 8, 8, 5)).tolist()
        kinds.of((turn, *others), generator.permutation(uses), *nothing)
    return kinds


# Uses from one fit to the next, with all of them.
FULL_PERIOD = max(PERIOD_FIRST, all_kinds().count // KINDS_A_USE)


def watched(table: Returns, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Kinds that were looked at in one call, of those that fit and judge them."""
    looked: list[int] = []

    def count(method):
        def counting(kinds: slice, *others: float) -> None:
            looked.append(kinds.stop - kinds.start)
            method(kinds, *others)

        return counting

    for name in ("_take_stock", "_judge"):
        monkeypatch.setattr(table, name, count(getattr(table, name)))
    return looked


def test_no_use_does_much_of_a_fit_and_each_fit_comes_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all kinds, and when everything comes of age at once."""
    table, generator = Returns(all_kinds()), np.random.default_rng(2)
    table.used(0.0, np.zeros(1, np.int16))
    looked = watched(table, monkeypatch)
    come = count_aged(table, monkeypatch)
    total = 0
    for index in range(6 * FULL_PERIOD):
        looked.clear()
        come.clear()
        kinds = generator.permutation(KINDS_MAX)[: RUNS_MAX // 128].astype(np.int16)
        table.used(float(index if index < 3 * FULL_PERIOD else index + 10_000), kinds)
        assert sum(looked) < USE_EFFORT + STEP_EFFORT
        assert sum(come) < 8 * RUNS_AT_ONCE
        total += sum(looked)
    # Fits are begun five times before the last use but one period, and each looks at every kind twice.
    assert total >= 4 * 2 * KINDS_MAX


def test_a_use_costs_the_same_however_much_was_learned() -> None:
    """In calls, of Python and of numpy on arrays that have a bound: with all kinds, and fits under way."""
    policy, generator = Worth(), np.random.default_rng(5)
    policy.begin(4_000)
    policy._kinds = kinds = all_kinds()
    policy.returns = Returns(kinds)
    calls = []
    for index in range(2 * FULL_PERIOD):
        rows = np.sort(generator.choice(4_000, 200, replace=False))
        before, made = kinds.count, count_calls(partial(use, policy, 7.0 * index, rows, rows))
        # What is new is put down block by block, each once in the life of the policy.
        calls.append(made - CALLS_A_KIND * (kinds.count - before))
    assert max(calls) < CALLS_A_USE
    # Who has part in a fit makes some more than who has none.
    assert min(calls) < CALLS_A_USE / 3


def count_calls(call: Callable[[], None]) -> int:
    count = 0

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count


def count_aged(table: Returns, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    come: list[int] = []
    runs = table._runs
    ask = runs.come_of_age

    def asking(bin_: int, time: float, count: int) -> tuple[np.ndarray, np.ndarray]:
        answer = ask(bin_, time, count)
        come.append(answer[0].size)
        return answer

    monkeypatch.setattr(runs, "come_of_age", asking)
    return come


def test_a_fit_in_steps_comes_to_the_same_as_one_at_once() -> None:
    """Where nothing happens between the steps but what is not counted yet."""
    tables = [Returns(all_kinds()) for _ in range(2)]
    for table in tables:
        generator = np.random.default_rng(3)
        for index in range(FULL_PERIOD):
            kinds = generator.permutation(KINDS_MAX)[:50].astype(np.int16)
            table.used(10.0 * index, kinds)
            table.read(kinds[:9], np.full(9, 30.0))
    stepwise, at_once = tables
    finish(at_once._steps)
    for _ in range(FULL_PERIOD - 1):
        stepwise.used(10.0 * FULL_PERIOD, np.zeros(1, np.int16))
    assert stepwise._seen == pytest.approx(at_once._seen)
    assert stepwise.hazard == pytest.approx(at_once.hazard)
    assert not np.allclose(at_once.hazard, returns.Returns(Kinds()).hazard[:, :1])


def test_what_is_new_is_fitted_sooner_and_sooner_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    table, kinds = Returns(Kinds()), np.zeros(4, np.int16)
    begun: list[int] = []

    def begin(earlier: Iterator[int], uses: int) -> Iterator[int]:
        begun.append(uses)
        return earlier

    monkeypatch.setattr(table, "_fit", begin)
    for index in range(64 * PERIOD):
        table.used(float(index), kinds)
    assert begun[:2] == [PERIOD_FIRST] * 2
    assert begun == sorted(begun)
    assert begun[-2:] == [PERIOD] * 2


def finish(steps: Iterator[int]) -> None:
    for _ in steps:
        pass


def test_runs_come_of_each_age_once_unless_they_were_overwritten() -> None:
    runs, generator = Runs(), np.random.default_rng(4)
    uses, runs_each = 3_000, 60
    times = np.repeat(np.cumsum(generator.exponential(1.0, uses)), runs_each)
    kinds = np.array([generator.permutation(100)[:runs_each] for _ in range(uses)]).ravel()
    sizes = generator.integers(1, 4, kinds.size)
    passed, told = [0] * BINS, [0] * BINS
    for index in range(uses):
        begin, end = index * runs_each, (index + 1) * runs_each
        runs.add(times[begin], np.repeat(kinds[begin:end], sizes[begin:end]).astype(np.int16))
        bin_ = int(generator.integers(BINS))
        first = max(passed[bin_], end - RUNS_MAX)
        last = int(np.searchsorted(times[:end], times[begin] - EDGES[bin_], side="right"))
        come: list[np.ndarray] = [np.empty((0, 2))]
        while (more := runs.come_of_age(bin_, times[begin], runs.count))[0].size:
            come.append(np.column_stack(more))
        expected = np.column_stack([kinds[first:last], sizes[first:last]])
        assert np.concatenate(come).tolist() == expected.tolist()
        passed[bin_] = max(first, last)
        told[bin_] += len(expected)
    # Of what is young all was told, of what is old only what wasn't overwritten before.
    assert told[0] > kinds.size - 50 * runs_each > told[-1]
