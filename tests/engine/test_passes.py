"""Steps are over in order, each when an event behind its work has said so, and not before."""

from engine.steps import AHEAD_MAX, StepsUnderWay


class Event:
    def __init__(self) -> None:
        self.done = False
        self.waited = False

    def is_done(self) -> bool:
        return self.done

    def wait(self) -> None:
        self.waited = self.done = True

    def seconds_since(self, earlier: object) -> float:
        assert self.done
        assert isinstance(earlier, Event)
        assert earlier.done
        return 0.25


def test_a_step_is_over_when_its_event_and_those_before_it_are_done():
    steps, events = StepsUnderWay(), [Event() for _ in range(3)]
    assert steps.completed() == 0
    for step, event in enumerate(events, start=1):
        steps.end(step, event, None)
    events[1].done = True
    assert steps.completed() == 0
    assert not steps.is_empty
    events[0].done = True
    assert steps.completed() == 2
    events[2].done = True
    assert steps.completed() == 3
    assert steps.is_empty


def test_what_a_forward_pass_took_is_told_once_and_not_before_it_is_over():
    steps, begin, end = StepsUnderWay(), Event(), Event()
    steps.end(1, end, begin)
    steps.end(2, end, None)
    assert steps.completed() == 0
    assert steps.take_seconds() == {}
    begin.done = end.done = True
    assert steps.completed() == 2
    assert steps.take_seconds() == {1: 0.25}
    assert steps.take_seconds() == {}


def test_whoever_would_be_too_far_ahead_waits_for_the_oldest_alone():
    steps, events = StepsUnderWay(), [Event() for _ in range(AHEAD_MAX + 1)]
    for step, event in enumerate(events, start=1):
        assert not any(each.waited for each in events)
        steps.end(step, event, None)
    assert [event.waited for event in events] == [True] + [False] * AHEAD_MAX
    assert steps.completed() == 1
