"""Who makes room for whom, and who may come back.

When the store says that no room is coming, the most recent running stream of the lowest level is swapped out.
Nobody goes for one that is not in yet, unless that has the higher priority. A preempted stream asks to come
back after another has left, so that two do not push each other out for ever: each return is paid for by an
end.

Ahead of need: while the store tells high pressure, the lowest are swapped out before those of a higher
priority find their frames short, one at a time. They stay away until the pressure is low, or none of these is
left. Who is to come back when another ends asks one step early, beside that one's last token.

Where it isn't allowed nobody ever goes: room was certain for all who were admitted (`promises.py`).
Tests: tests/engine/test_preemption.py.
"""

from collections.abc import Iterable

from engine.requests import Stream, StreamState
from engine.scheduling.roster import Roster
from kvstore.client import BlockTables
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["Preemption"]

AWAY = (pb.Sequence.SWAPPED, pb.Sequence.DROPPED)
# The store looks at its pressure ten times a second: no more than one goes by the same look.
AHEAD_SECONDS = 0.2


class Preemption:
    def __init__(self, roster: Roster, *, is_allowed: bool = True) -> None:
        self._roster = roster
        self._is_allowed = is_allowed
        # How often somebody was swapped out.
        self.count = 0
        self._victim: Stream | None = None
        # Whether a stream has left since the last preemption.
        self._has_room_changed = True
        self._pressure: pb.Pressure.ValueType = pb.PRESSURE_LOW
        # When one may be swapped out ahead again.
        self._ahead_from = 0.0

    @property
    def is_pending(self) -> bool:
        """Somebody is to go with the next step."""
        return self._victim is not None

    @property
    def is_calm(self) -> bool:
        """Nobody is to go, nor would be by a look at the pressure."""
        return self._victim is None and self._pressure == pb.PRESSURE_LOW

    def note_shortage(self, stream: Stream, frames_short: int) -> None:
        """No room is coming by itself: somebody has to go."""
        running = self._roster.running
        if not (self._is_allowed and frames_short and running) or self._victim is not None:
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

    def note_pressure(self, pressure: pb.Pressure.ValueType) -> None:
        """Of the GPU tier."""
        self._pressure = pressure

    def take(self, now: float) -> Iterable[Stream]:
        """Who goes with this step: one at most."""
        victim, self._victim = self._victim or self._find_ahead(now), None
        if victim is None or victim.state is not StreamState.RUNNING:
            return
        victim.state = StreamState.PREEMPTED
        victim.preemptions += 1
        self.count += 1
        victim.waits_since = now
        self._has_room_changed = False
        yield victim

    def _find_ahead(self, now: float) -> Stream | None:
        """The last of those who run, where one of a higher priority has frames too.

        Where pressure is FULL somebody waits for frames, and a shortage says who is to go.
        """
        running = self._roster.running
        is_early = self._pressure != pb.PRESSURE_HIGH or now < self._ahead_from
        if is_early or not running or not self._is_allowed:
            return None
        # Not what others have gained by waiting: of equals nobody goes before it must.
        if not any(each.request.priority > running[-1].level for each in self._roster.holding):
            return None
        self._ahead_from = now + AHEAD_SECONDS
        return running[-1]

    def may_return(self, stream: Stream, level: int, tables: BlockTables) -> bool:
        """`level`: to which its waiting has brought it."""
        # Asked while it is still on its way out it would come back at once.
        if tables.state(stream.sequence) not in AWAY:
            return False
        holding = self._roster.holding
        staying = [each for each in holding if not each.ends_with_next_token]
        if self._pressure != pb.PRESSURE_LOW and any(each.request.priority > level for each in staying):
            return False
        is_room_changing = self._has_room_changed or len(staying) < len(holding)
        return is_room_changing or not any(each.tokens_pending for each in holding)

    def start_over(self) -> None:
        """Another service tells its own pressure."""
        self._victim = None
        self._has_room_changed = True
        self._pressure = pb.PRESSURE_LOW
