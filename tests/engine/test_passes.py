"""Passes are over in order, each when an event behind its work has said so, and not before."""

from engine.passes import AHEAD_MAX, PassesUnderWay


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


def test_a_pass_is_over_when_its_event_and_those_before_it_are_done():
    passes, events = PassesUnderWay(), [Event() for _ in range(3)]
    assert passes.completed() == 0
    for number, event in enumerate(events, start=1):
        passes.end(number, event, None)
    events[1].done = True
    assert passes.completed() == 0
    assert not passes.is_empty
    events[0].done = True
    assert passes.completed() == 2
    events[2].done = True
    assert passes.completed() == 3
    assert passes.is_empty


def test_what_a_forward_pass_took_is_told_once_and_not_before_it_is_over():
    passes, begin, end = PassesUnderWay(), Event(), Event()
    passes.end(1, end, begin)
    passes.end(2, end, None)
    assert passes.completed() == 0
    assert passes.take_seconds() == {}
    begin.done = end.done = True
    assert passes.completed() == 2
    assert passes.take_seconds() == {1: 0.25}
    assert passes.take_seconds() == {}


def test_whoever_would_be_too_far_ahead_waits_for_the_oldest_alone():
    passes, events = PassesUnderWay(), [Event() for _ in range(AHEAD_MAX + 1)]
    for number, event in enumerate(events, start=1):
        assert not any(each.waited for each in events)
        passes.end(number, event, None)
    assert [event.waited for event in events] == [True] + [False] * AHEAD_MAX
    assert passes.completed() == 1
