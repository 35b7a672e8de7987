"""All streams that are not done, in order of precedence, and which sequence is whose.

Those who have been admitted stand by level, and among equals in the order of their first admission: the last
who runs is the first to go. Those who have not stand by level and arrival; whose turn it is says `order.py`.
"""

from collections.abc import Iterable
from itertools import count

from engine.requests import NO_SEQUENCE, Stream, StreamState

__all__ = ["HOLDING", "OUTSIDE", "Roster"]

HOLDING = (StreamState.LOADING, StreamState.RUNNING, StreamState.FORKING)
OUTSIDE = (StreamState.QUEUED, StreamState.PREEMPTED)


class Roster:
    def __init__(self) -> None:
        self.streams: list[Stream] = []
        # Done; what the store holds for them goes back with the next step.
        self.ended: list[Stream] = []
        self._by_sequence: dict[int, Stream] = {}
        self._sequences = count(1)
        self._places = count(1)

    def add(self, stream: Stream) -> None:
        self.streams.append(stream)
        self._sort()

    def add_behind(self, stream: Stream, parent: Stream, now: float) -> None:
        """Where the one that it goes on from stands."""
        stream.level, stream.place, stream.waits_since = parent.level, parent.place, now
        self.streams.insert(self.streams.index(parent) + 1, stream)

    def enter(self, stream: Stream, level: int) -> None:
        """It has been admitted, or is back; the level that its waiting has brought it to it keeps."""
        stream.level = level
        stream.place = stream.place or next(self._places)
        self._sort()

    def end(self, stream: Stream) -> None:
        """It is done, and those who follow it: what it holds goes back with the next step."""
        self.streams.remove(stream)
        self.ended.append(stream)
        for follower in stream.followers:
            if not follower.is_done:
                follower.state, follower.reason = stream.state, stream.reason

    def take_ended(self) -> list[Stream]:
        """Those whose sequences are to be freed, which are nobody's from now on."""
        held = [stream for stream in self.ended if stream.sequence != NO_SEQUENCE]
        self.ended = []
        for stream in held:
            del self._by_sequence[stream.sequence]
        return held

    def number(self, stream: Stream) -> None:
        stream.sequence = next(self._sequences)
        self._by_sequence[stream.sequence] = stream

    def by_sequence(self, sequence: int) -> Stream:
        return self._by_sequence[sequence]

    def find(self, sequences: Iterable[int]) -> list[Stream]:
        """Of these sequences those that are known."""
        return [self._by_sequence[each] for each in sequences if each in self._by_sequence]

    def start_over(self, stream: Stream) -> None:
        """It has nothing in the store; unless it is done meanwhile, it is admitted again, by key."""
        self._by_sequence.pop(stream.sequence, None)
        if stream.is_done:
            stream.sequence = NO_SEQUENCE
        else:
            stream.start_over()

    def start_all_over(self, now: float) -> None:
        """Nothing is in the store any more."""
        self.ended.clear()
        self._by_sequence.clear()
        for stream in self.streams:
            if stream.state is not StreamState.QUEUED:
                stream.waits_since = now
            stream.start_over()

    @property
    def running(self) -> list[Stream]:
        return [stream for stream in self.streams if stream.state is StreamState.RUNNING]

    @property
    def holding(self) -> list[Stream]:
        return [stream for stream in self.streams if stream.state in HOLDING]

    @property
    def outside(self) -> list[Stream]:
        """Those who wait; a beam with nothing to compute before others of its search does not."""
        return [each for each in self.streams if each.state in OUTSIDE and each.tokens_pending]

    def _sort(self) -> None:
        # The sort is stable: equals stay in the order in which they came, and branches behind their parents.
        self.streams.sort(key=lambda each: (-each.level, not each.place, each.place))
