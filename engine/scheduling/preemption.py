"""Who makes room for whom, and who may come back.

When the store says that no room is coming, the most recent running stream of the lowest level is swapped out.
Nobody goes for one that is not in yet, unless that has the higher priority. A preempted stream asks to come
back after another has left, so that two do not push each other out for ever: each return is paid for by an
end.
Tests: tests/engine/test_preemption.py.
"""

from collections.abc import Iterable

from engine.requests import Stream, StreamState
from engine.scheduling.roster import Roster
from kvstore.client import BlockTables
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["Preemption"]

AWAY = (pb.Sequence.SWAPPED, pb.Sequence.DROPPED)


class Preemption:
    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._victim: Stream | None = None
        # Whether a stream has left since the last preemption.
        self._has_room_changed = True

    @property
    def is_pending(self) -> bool:
        """Somebody is to go with the next step."""
        return self._victim is not None

    def note_shortage(self, stream: Stream, frames_short: int) -> None:
        """No room is coming by itself: somebody has to go."""
        running = self._roster.running
        if not frames_short or not running or self._victim is not None:
            return
        # A beam that waits for the others of its search has no use for its frames before they have come on.
        if waiting := [each for each in running if not each.tokens_pending]:
            self._victim = waiting[-1]
            return
        lowest = running[-1]
        # What it has gained by waiting gives it no right: else two that wait in turn push each other out.
        if stream.state is StreamState.RUNNING or lowest.level < stream.request.priority:
            self._victim = lowest

    def note_left(self) -> None:
        """What somebody held goes back."""
        self._has_room_changed = True

    def take(self, now: float) -> Iterable[Stream]:
        """Who goes with this step: one at most."""
        victim, self._victim = self._victim, None
        if victim is None or victim.state is not StreamState.RUNNING:
            return
        victim.state = StreamState.PREEMPTED
        victim.preemptions += 1
        victim.waits_since = now
        self._has_room_changed = False
        yield victim

    def may_return(self, stream: Stream, tables: BlockTables) -> bool:
        # Asked while it is still on its way out it would come back at once.
        if tables.state(stream.sequence) not in AWAY:
            return False
        return self._has_room_changed or not any(each.tokens_pending for each in self._roster.holding)

    def start_over(self) -> None:
        self._victim = None
        self._has_room_changed = True
