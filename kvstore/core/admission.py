"""Who gets GPU frames: new sequences, growing ones, and those that come back.

All requests of a step are granted together where there is room for all: two numpy calls for
the lot, however many sequences there are. Otherwise each is tried alone, in order, and what
finds no room keeps a ticket: its place in the queue. Growth of what runs comes first, then
what was swapped out, then what is new; within a class the ticket decides. So nothing that
came later takes the frames that an earlier one waits for, and nothing that waits holds any.
"""

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from kvstore.core.blocks import NO_FRAME
from kvstore.core.config import StoreConfig
from kvstore.core.memory import Memory
from kvstore.core.sequences import Sequence
from kvstore.core.types import BlockRow, EngineId, Tier

__all__ = ["Admission", "Request", "Urgency"]

# A ticket whose engine has not asked for so long holds nobody up; its place is kept.
PATIENCE_SECONDS = 1.0


class Urgency(IntEnum):
    GROW = 0
    RETURN = 1
    NEW = 2


@dataclass(slots=True, eq=False)
class Request:
    """Frames for one sequence: for blocks that exist, and for new ones."""

    sequence: Sequence
    urgency: Urgency
    held: "array[int]" = field(default_factory=lambda: array("i"))
    fresh: int = 0
    # Finds the cached prefix that `held` may be, as the index is now.
    find: Callable[[], list[BlockRow]] | None = None
    # Filled in by a grant: the new blocks.
    granted: "array[int]" = field(default_factory=lambda: array("i"))

    def look_again(self) -> None:
        """A grant to another may have evicted what was found when this was planned."""
        if self.find:
            blocks = len(self.held) + self.fresh
            self.held = array("i", self.find())
            self.fresh = blocks - len(self.held)


@dataclass(slots=True)
class _Ticket:
    number: int
    urgency: Urgency
    frames: int
    time_asked: float


class Admission:
    """The queue for GPU frames."""

    def __init__(self, config: StoreConfig, memory: Memory) -> None:
        self._config = config
        self._memory = memory
        self._tickets: dict[Sequence, _Ticket] = {}
        self._last_number = 0

    def grant(self, requests: list[Request], time: float) -> list[Request]:
        """Grants what there is room for and returns the requests that have to wait."""
        if not requests:
            return []
        if not self._tickets and self._take(requests, spare=0):
            return []
        waiting: list[Request] = []
        for request in sorted(requests, key=self._place):
            request.look_again()
            if self._take([request], self._frames_ahead(request, time)):
                self.leave(request.sequence)
            else:
                self._queue(request, time)
                waiting.append(request)
        return waiting

    def _take(self, requests: list[Request], spare: int) -> bool:
        held = np.frombuffer(b"".join([request.held for request in requests]), np.int32)
        granted = self._memory.grant(held, sum(request.fresh for request in requests), spare)
        if granted is None:
            return False
        rows, taken = granted.tobytes(), 0
        for request in requests:
            end = taken + request.fresh * granted.itemsize
            request.granted = array("i", rows[taken:end])
            taken = end
        return True

    # ------------------------------------------------------------------------- tickets

    def leave(self, sequence: Sequence) -> None:
        """The sequence waits no more."""
        self._tickets.pop(sequence, None)

    def is_waiting(self, time: float) -> bool:
        """Whether somebody waits for frames and still asks for them."""
        return any(self._asks(ticket, time) for ticket in self._tickets.values())

    def engines_waiting(self) -> dict[EngineId, None]:
        """Whose sequences have a ticket."""
        return dict.fromkeys(sequence.engine for sequence in self._tickets)

    def _asks(self, ticket: _Ticket, time: float) -> bool:
        return time - ticket.time_asked <= PATIENCE_SECONDS

    def _place(self, request: Request) -> tuple[int, int]:
        ticket = self._tickets.get(request.sequence)
        return request.urgency, ticket.number if ticket else self._last_number + 1

    def _queue(self, request: Request, time: float) -> None:
        held = np.array(request.held, np.int32)
        lacking = int((self._memory.blocks.frame[Tier.GPU, held] == NO_FRAME).sum())
        ticket = self._tickets.get(request.sequence)
        if ticket is None:
            self._last_number += 1
            number = self._last_number
        else:
            number = ticket.number
        frames = lacking + request.fresh
        self._tickets[request.sequence] = _Ticket(number, request.urgency, frames, time)

    def _frames_ahead(self, request: Request, time: float) -> int:
        """Frames that those wait for who stand before this request."""
        place = self._place(request)
        return sum(
            ticket.frames
            for sequence, ticket in self._tickets.items()
            if sequence is not request.sequence
            and (ticket.urgency, ticket.number) < place
            and self._asks(ticket, time)
        )

    def frames_short(self, request: Request, time: float) -> int:
        """Frames still lacking for this request when all that is in flight has ended.

        What no sequence holds then is free or can be evicted; held are frames of resident
        sequences that nobody has freed or asked to leave, and quarantined ones.
        """
        blocks = self._memory.blocks
        pool = self._memory.pools[Tier.GPU]
        held_frames = self._memory.held_on_gpu()
        mine = np.array(request.held, np.int32)
        needed = request.fresh + int((blocks.live[mine] == 0).sum()) + self._frames_ahead(request, time)
        return max(0, needed - (pool.frame_count - held_frames))
