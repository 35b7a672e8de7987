"""Links in virtual time: each moves one transfer after the other, the most urgent first."""

import heapq
from collections.abc import Callable
from functools import partial

from kvstore.core.effects import Transfer
from kvstore.core.types import Link
from kvstore.planner.profile import Profile
from kvstore.sim.clock import Clock

__all__ = ["VirtualLinks"]


class VirtualLinks:
    """Nothing fails here and nothing is late. `ended` is told each transfer once, when its time has come."""

    def __init__(
        self, profile: Profile, block_bytes: int, clock: Clock, ended: Callable[[Transfer], None]
    ) -> None:
        self._speeds = profile.links()
        self._block_bytes = block_bytes
        self._clock = clock
        self._ended = ended
        # By link: what waits, by urgency and then in order; and whether one is moving.
        self._waiting: dict[Link, list[tuple[int, int, Transfer]]] = {link: [] for link in self._speeds}
        self._moving: set[Link] = set()
        self._count = 0
        self.blocks_moved = dict.fromkeys(self._speeds, 0)
        self.busy_seconds = dict.fromkeys(self._speeds, 0.0)

    @property
    def is_idle(self) -> bool:
        return not self._moving

    def carry(self, transfer: Transfer, time: float) -> None:
        link = transfer.source, transfer.target
        self._count += 1
        heapq.heappush(self._waiting[link], (transfer.urgency, self._count, transfer))
        if link not in self._moving:
            self._begin(link, time)

    def _begin(self, link: Link, time: float) -> None:
        _, _, transfer = heapq.heappop(self._waiting[link])
        seconds = self._speeds[link].seconds(len(transfer.source_frames) * self._block_bytes)
        self._moving.add(link)
        self._clock.at(time + seconds, partial(self._end, link, transfer, time + seconds))
        self.blocks_moved[link] += len(transfer.source_frames)
        self.busy_seconds[link] += seconds

    def _end(self, link: Link, transfer: Transfer, time: float) -> None:
        self._moving.discard(link)
        if self._waiting[link]:
            self._begin(link, time)
        self._ended(transfer)
