"""Steps by their passes: what is told as completed, and what is told of the time that passes took."""

import random
from collections.abc import Iterable

import pytest

from engine.requests import Request, Stream, Work
from engine.steps import Steps
from kvstore.client import KeyChain


class Passes:
    """A device on which passes are over when the test says so, in order; nobody knows what `untimed` take."""

    is_busy = False

    def __init__(self, untimed: Iterable[int] = ()) -> None:
        self.ended: list[int] = []
        self.completed = 0
        self._untimed = set(untimed)
        self._told = 0

    def end_pass(self, number: int) -> None:
        self.ended.append(number)

    def completed_pass(self) -> int:
        return self.completed

    def take_seconds(self) -> dict[int, float]:
        first, self._told = self._told + 1, self.completed
        return {each: 0.001 * each for each in range(first, self._told + 1) if each not in self._untimed}


def decoding(context: int) -> Work:
    """A pass over one stream that has `context` tokens with its last."""
    request = Request(id="r", prompt=(1,) * context, max_new_tokens=9)
    stream = Stream(request=request, chain=KeyChain(16), tokens=list(request.prompt))
    stream.computed = context - 1
    return Work([stream])


def run(steps: Steps, step: int, contexts: Iterable[int]) -> None:
    """A pass each, of this step."""
    for context in contexts:
        steps.note_work(step, decoding(context))
        steps.end_pass()


def take(steps: Steps) -> list[tuple[int, int, int]]:
    """Of each timing its step, context and milliseconds."""
    taken = steps.take_timings()
    return [(each.step, each.decode_context, each.elapsed.ToMicroseconds() // 1000) for each in taken]


def make(untimed: Iterable[int] = ()) -> tuple[Steps, Passes]:
    device = Passes(untimed)
    return Steps(device), device  # type: ignore[arg-type]


def test_a_step_is_over_with_its_last_pass_and_not_before_it():
    steps, device = make()
    run(steps, 1, [10, 11, 12])
    steps.end_step(1)
    assert device.ended == [1, 2, 3]
    for completed in (0, 1, 2):
        device.completed = completed
        assert steps.completed() == 0
    device.completed = 3
    assert steps.completed() == 1


def test_nor_before_it_has_ended_though_all_its_passes_so_far_are_over():
    steps, device = make()
    run(steps, 1, [10, 11])
    device.completed = 2
    assert steps.completed() == 0
    run(steps, 1, [12])
    steps.end_step(1)
    assert steps.completed() == 0
    device.completed = 3
    assert steps.completed() == 1


def test_what_its_passes_took_is_told_when_it_is_over_each_once():
    steps, device = make()
    run(steps, 1, [10, 11])
    device.completed = 2
    assert steps.completed() == 0
    assert take(steps) == []
    run(steps, 1, [12])
    steps.end_step(1)
    assert take(steps) == []
    device.completed = 3
    assert steps.completed() == 1
    assert take(steps) == [(1, 10, 1), (1, 11, 2), (1, 12, 3)]
    assert take(steps) == []


def test_of_passes_of_which_nothing_is_known_nothing_is_told_nor_kept():
    steps, device = make(untimed=[1, 3])
    run(steps, 1, [10, 11, 12])
    steps.end_step(1)
    device.completed = 3
    assert steps.completed() == 1
    assert take(steps) == [(1, 11, 2)]
    assert take(steps) == []
    assert steps._timings._by_pass == {}


def test_several_steps_are_over_at_once_and_one_is_not():
    steps, device = make()
    for step, contexts in ((1, [10]), (2, [20, 21]), (3, [30, 31])):
        run(steps, step, contexts)
        steps.end_step(step)
    device.completed = 4
    assert steps.completed() == 2
    assert take(steps) == [(1, 10, 1), (2, 20, 2), (2, 21, 3)]
    device.completed = 5
    assert steps.completed() == 3
    assert take(steps) == [(3, 30, 4), (3, 31, 5)]


def test_a_step_without_a_pass_is_over_with_those_before_it():
    steps, device = make()
    run(steps, 1, [10])
    steps.end_step(1)
    # One that was answered behind it and had nothing run, and two of which nobody heard here.
    steps.end_step(2)
    run(steps, 5, [50])
    steps.end_step(5)
    assert steps.completed() == 0
    device.completed = 1
    assert steps.completed() == 2
    device.completed = 2
    assert steps.completed() == 5
    assert take(steps) == [(1, 10, 1), (5, 50, 2)]


def test_a_pass_in_which_nothing_was_computed_belongs_to_a_step_too():
    steps, device = make(untimed=[2])
    run(steps, 1, [10])
    steps.end_pass()  # Frames were copied, say.
    steps.end_step(1)
    device.completed = 1
    assert steps.completed() == 0
    device.completed = 2
    assert steps.completed() == 1
    assert take(steps) == [(1, 10, 1)]


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_drawn_each_pass_is_told_once_and_none_before_its_step(seed):
    draw = random.Random(seed)
    steps, device = make()
    step, last_pass = 1, {0: 0}
    told: list[tuple[int, int, int]] = []
    for number in range(1, 200):
        run(steps, step, [number])
        if draw.random() < 0.3:
            steps.end_step(step)
            last_pass[step] = number
            step += draw.randint(1, 2)
        device.completed = draw.randint(device.completed, number)
        expected = max(each for each, last in last_pass.items() if last <= device.completed)
        assert steps.completed() == expected
        told += take(steps)
        assert all(each <= expected for each, _, _ in told)
    steps.end_step(step)
    device.completed = 199
    assert steps.completed() == step
    told += take(steps)
    assert [context for _, context, _ in told] == list(range(1, 200))
