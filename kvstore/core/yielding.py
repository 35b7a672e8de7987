"""What the store does by itself makes way for what engines wait for, but not for ever.

Background transfers are not begun while an asked-for load waits for its turn, nor writes and what is
brought up ahead while somebody waits for GPU frames. One goes all the same after each wait of so long.
Two kinds are not background any more: copies out of a GPU that somebody waits for frames of, and writes
when the CPU tier is full of what has no other copy: eviction would lose it. And before a restart nothing
makes way: what is not written then is lost, and there may be no later.
"""

from collections.abc import Callable

from kvstore.core.config import StoreConfig
from kvstore.core.lanes import Lane, Lanes
from kvstore.core.types import ASKED, BACKGROUND, COPY, LOAD, NEEDED, READ, WRITE, Urgency

__all__ = ["Yielding"]


class Yielding:
    def __init__(self, config: StoreConfig, lanes: Lanes, is_waiting: Callable[[float], bool]) -> None:
        self._wait_seconds = config.background_wait_seconds
        # Whether somebody waits for GPU frames at this time.
        self._is_waiting = is_waiting
        self._asked = lanes[LOAD, ASKED], lanes[READ, ASKED]
        self._copies, self._writes = lanes[COPY, BACKGROUND], lanes[WRITE, BACKGROUND]
        # By place of the lane: when it began to make way, or was let through last.
        self._since: dict[tuple[object, Urgency], float] = {}
        # The CPU tier is above its high watermark, and has not been below the low one since.
        self.cpu_is_full = False
        # All that is worth keeping is being written down, before a restart.
        self.is_draining = False

    def transfers_max(self, lane: Lane, time: float) -> int:
        """How many transfers a lane of background work may begin now."""
        place = lane.link, lane.urgency
        if not self._must_yield(lane, time):
            self._since.pop(place, None)
            return lane.under_way_max
        since = self._since.setdefault(place, time)
        if time - since < self._wait_seconds:
            return 0
        self._since[place] = time
        return 1

    def urgency(self, lane: Lane, time: float) -> Urgency:
        """How urgent the lane's transfers are just now."""
        return NEEDED if lane is self._copies and self._is_waiting(time) else lane.urgency

    @property
    def loads_wait(self) -> bool:
        """Whether more is asked for than the links can take at once."""
        return any(lane.rows for lane in self._asked)

    def _must_yield(self, lane: Lane, time: float) -> bool:
        if self.is_draining and lane.urgency is BACKGROUND:
            return False
        if lane is self._copies:
            return self.loads_wait and not self._is_waiting(time)
        if lane is self._writes and (self.cpu_is_full or self._copies.stalled or self._asked[1].stalled):
            return False
        return self.loads_wait or self._is_waiting(time)
