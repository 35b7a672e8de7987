"""Who gets GPU frames: new sequences, growing ones, and those that come back.

All requests of a step are granted together where there is room for all: a fixed number of numpy
calls for the lot, however many sequences there are. Otherwise each is tried alone, in order, and
what finds no room keeps a ticket: its place in the queue. Growth of what runs comes first, then
what was swapped out, then what is new; within a class the ticket decides. So nothing that
came later takes the frames that an earlier one waits for, and nothing that waits holds any.
"""

from array import array
from collections.abc import Callable

import numpy as np
from msgspec import Struct

from kvstore.core.blocks import NO_ROWS, NO_TABLE, as_table, concat
from kvstore.core.config import StoreConfig
from kvstore.core.frames import Purpose, grant_frames
from kvstore.core.memory import Memory
from kvstore.core.ports import Verdict
from kvstore.core.sequences import Sequence
from kvstore.core.types import GPU, RESIDENT, DomainId, EngineId, Number, Rows
from kvstore.core.wanted import Wanted

__all__ = ["WHY_ROOM", "Admission", "Precedence", "Request"]

# A ticket whose engine has not asked for so long holds nobody up; its place is kept.
PATIENCE_SECONDS = 1.0
# Of `Blocks.changes`: what was found may be another now.
ANYTHING = -1


class Precedence(Number):
    GROW = 0
    RETURN = 1
    NEW = 2


# What frames are for, in words.
WHY_ROOM = {
    Precedence.GROW: "sequences that run need frames for their next tokens",
    Precedence.RETURN: "a sequence comes back to the GPU",
    Precedence.NEW: "a sequence begins",
}
WHY_SEVERAL = "sequences begin, come back or grow in one step"


class Request(Struct, eq=False):
    """Frames for one sequence: for blocks that exist, and for new ones."""

    sequence: Sequence
    precedence: Precedence
    held: "array[int]" = NO_TABLE
    fresh: int = 0
    # Finds the cached prefix that `held` may be, as the index is now, and how much of it is worth having.
    find: Callable[[], "tuple[array[int], Verdict | None]"] | None = None
    verdict: Verdict | None = None
    # Filled in by a grant: the new blocks; or what those want who stand between the one before who waits
    # and this one, and did not ask just now: blocks that exist, and new ones.
    granted: "array[int]" = NO_TABLE
    held_before: Rows = NO_ROWS
    fresh_before: int = 0

    @property
    def rows(self) -> Rows:
        return np.array(self.held, np.intp)

    def look_again(self) -> None:
        """A grant to another may have evicted what was found when this was planned."""
        if self.find:
            blocks = len(self.held) + self.fresh
            self.held, self.verdict = self.find()
            self.fresh = blocks - len(self.held)


class _Ticket(Struct):
    # Precedence, and a number within it.
    place: tuple[int, int]
    # Blocks as they were found when it asked, with what their numbers meant then, and new ones.
    held: Rows
    generations: Rows
    fresh: int
    time_asked: float


class Admission:
    """The queue for GPU frames."""

    def __init__(self, config: StoreConfig, memory: Memory) -> None:
        self._config = config
        self._memory = memory
        self._tickets: dict[Sequence, _Ticket] = {}
        # Sequences that have never had frames get none: the service is about to be restarted.
        self.is_closed = False
        self._last_number = 0

    def grant(self, requests: list[Request], time: float) -> list[Request]:
        """Grants what there is room for and returns the requests that have to wait."""
        changes = self._memory.blocks.changes
        if not self._tickets and self._take(requests, spare=0):
            return []
        waiting: list[Request] = []
        others, passed, named = self._others(requests, time), 0, 0
        ahead = Wanted(self._memory.blocks)
        for request in sorted(requests, key=self._place):
            known = passed
            while passed < len(others) and others[passed].place < self._place(request):
                passed += 1
            if passed > known:
                ahead.add(*self._wanted_by(others[known:passed]))
            if changes != self._memory.blocks.changes:
                request.look_again()
            if self._fits(request, ahead):
                self.leave(request.sequence)
                # What it has got may be of use to those behind it, or have been what they had found.
                changes = ANYTHING
                continue
            if passed > named:
                request.held_before, request.fresh_before = self._wanted_by(others[named:passed])
                named = passed
            self._queue(request, time)
            ahead.add(request.rows, request.fresh)
            waiting.append(request)
        return waiting

    def _others(self, requests: list[Request], time: float) -> list[_Ticket]:
        """Tickets of those who wait and are not asking just now, in their order."""
        asking = {request.sequence for request in requests}
        others = [
            ticket
            for sequence, ticket in self._tickets.items()
            if sequence not in asking and self._asks(ticket, time)
        ]
        return sorted(others, key=lambda ticket: ticket.place)

    def _wanted_by(self, tickets: list[_Ticket]) -> tuple[Rows, int]:
        """Blocks that exist, and new ones: also for those that have gone since they were found."""
        held = concat([ticket.held for ticket in tickets])
        meant = concat([ticket.generations for ticket in tickets])
        there = held[self._memory.blocks.generation[held] == meant]
        return there, sum([ticket.fresh for ticket in tickets]) + held.size - there.size

    def _fits(self, request: Request, ahead: Wanted) -> bool:
        """Takes what is asked for if there is room beside what those wait for who stand before."""
        if ahead.frames + request.fresh > self._memory.pools[GPU].frame_count:
            # They wait for the whole pool: nothing has to be looked for.
            return False
        if not self._take([request], ahead.frames_beside(request.rows)):
            return False
        ahead.look_again()
        return True

    def _take(self, requests: list[Request], spare: int) -> bool:
        held, fresh = concat([request.held for request in requests]), sum([each.fresh for each in requests])
        domains: list[tuple[DomainId, int]] = []
        if self._memory.shares.are_shared:
            domains = [(request.sequence.domain, request.fresh) for request in requests]
        granted = grant_frames(self._memory, held, fresh, lambda: _purpose(requests), spare, domains)
        if granted is None:
            return False
        rows, begin = as_table(granted), 0
        for request in requests:
            end = begin + request.fresh
            request.granted = rows[begin:end]
            begin = end
        return True

    # ------------------------------------------------------------------------- tickets

    def leave(self, sequence: Sequence) -> None:
        """The sequence waits no more."""
        self._tickets.pop(sequence, None)

    @property
    def growth_waits(self) -> bool:
        """Whether a sequence that grows has a ticket: what grows goes before all others. One that has left
        the GPU since has to come back first."""
        return any(
            ticket.place[0] == Precedence.GROW and sequence.state is RESIDENT
            for sequence, ticket in self._tickets.items()
        )

    def is_waiting(self, time: float) -> bool:
        """Whether somebody waits for frames and still asks for them."""
        return bool(self._tickets) and any(self._asks(ticket, time) for ticket in self._tickets.values())

    @property
    def waiting(self) -> int:
        """How many sequences have a ticket."""
        return len(self._tickets)

    def domains_waiting(self) -> list[DomainId]:
        """Of each sequence with a ticket whose it is."""
        return [sequence.domain for sequence in self._tickets]

    def engines_waiting(self) -> dict[EngineId, None]:
        """Whose sequences have a ticket."""
        return dict.fromkeys(sequence.engine for sequence in self._tickets)

    def _asks(self, ticket: _Ticket, time: float) -> bool:
        return time - ticket.time_asked <= PATIENCE_SECONDS

    def _place(self, request: Request) -> tuple[int, int]:
        ticket = self._tickets.get(request.sequence)
        return request.precedence, ticket.place[1] if ticket else self._last_number + 1

    def _queue(self, request: Request, time: float) -> None:
        """Keeps the request's place, and what it waits for."""
        place, rows = self._place(request), request.rows
        self._last_number = max(self._last_number, place[1])
        generations = self._memory.blocks.generation[rows].astype(np.intp)
        self._tickets[request.sequence] = _Ticket(place, rows, generations, request.fresh, time)

    def frames_short(self, wanted: Wanted, frames_held: int) -> int:
        """Frames still lacking for what is wanted when all that is in flight has ended.

        `frames_held` are those that can't be had then (`Room.held_on_gpu`).
        """
        return max(0, wanted.frames - (self._memory.pools[GPU].frame_count - frames_held))


def _purpose(requests: list[Request]) -> Purpose:
    kinds = {request.precedence for request in requests}
    return Purpose(
        reason=WHY_ROOM[kinds.pop()] if len(kinds) == 1 else WHY_SEVERAL,
        sequences=[request.sequence for request in requests],
        of_many=all(request.precedence is Precedence.GROW for request in requests),
    )
