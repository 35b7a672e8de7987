"""Whose turn it is among those who wait.

The higher level goes first. A stream's level is its priority, and rises by one with each `ageing_seconds`
that it waits, so higher ones do not keep it out for ever; the level with which it is admitted it keeps.
Requests of one user and priority age together, from the time when the last of them was admitted: who asks for
much does not pass others by having much that waits. Waiting gives a turn, and no right to push others out.

Within a level preempted ones go first, as first admitted; then who has a ticket of the store already; then
new ones, fairly by user (`shares.py`), and those of one user in the order in which they came. Time is passed
in.
Tests: tests/engine/test_fairness.py.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from engine.requests import NO_SEQUENCE, Stream
from engine.scheduling.shares import Shares

__all__ = ["Order"]

Queue = tuple[str, int]


class Order:
    def __init__(self, ageing_seconds: float) -> None:
        self._ageing_seconds = ageing_seconds
        self.shares = Shares()
        # When one of the queue was admitted last.
        self._turns: dict[Queue, float] = {}

    def join(self, stream: Stream, others: Iterable[Stream]) -> None:
        """`others`: all that are not done."""
        user, priority = _queue(stream)
        queues = {_queue(each) for each in others}
        peers = [name for name, theirs in queues if theirs == priority]
        self.shares.join(user, peers, [name for name, _ in queues])
        self._turns = {each: time for each, time in self._turns.items() if each in queues}

    def note_admitted(self, stream: Stream, computed_tokens: int, now: float) -> None:
        """For the first time; so many tokens of its prompt are to be computed."""
        self._turns[_queue(stream)] = now
        self.shares.note_prompt(stream.request.user, computed_tokens)

    def level(self, stream: Stream, now: float) -> int:
        since = stream.waits_since
        if not stream.place:
            since = max(since, self._turns.get(_queue(stream), since))
        return stream.level + int(max(now - since, 0.0) / self._ageing_seconds)

    def waiting(self, streams: Iterable[Stream], now: float) -> Iterator[Stream]:
        """One after the other, each as if those before it had been admitted.

        streams: in the roster's order
        """
        rest = list(streams)
        levels = {stream: self.level(stream, now) for stream in rest}
        served = Counter({stream.request.user: self.shares.served(stream.request.user) for stream in rest})

        def precedence(stream: Stream) -> tuple[int, bool, bool, int]:
            if stream.place:
                return -levels[stream], False, False, 0
            return -levels[stream], True, stream.sequence == NO_SEQUENCE, served[stream.request.user]

        while rest:
            # Of equals the first: the roster has them by age.
            first = min(rest, key=precedence)
            rest.remove(first)
            yield first
            if not first.place:
                served[first.request.user] += len(first.tokens)
                for each in rest:
                    if not each.place and _queue(each) == _queue(first):
                        levels[each] = each.level


def _queue(stream: Stream) -> Queue:
    return stream.request.user, stream.request.priority
