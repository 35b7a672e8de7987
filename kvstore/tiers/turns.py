"""Whose turn it is in a link: transfers in pieces, by urgency and by how long they have waited.

A transfer stands where it would if each step of urgency were `AGEING_SECONDS` of waiting. So the more urgent
goes first, of equals the older, and nothing waits for ever. Its place changes only where somebody comes to
wait for it: one that has given way goes on before all that came after it.

What the disk is told keeps its place among the writes. It is begun when all transfers before it have been
begun and all that was told before it is done; transfers behind it are begun when it is done. So a write finds
the slots that a delete before it has freed. And it does not wait for the *ends* of transfers before it, or in
a full tier, where there is a delete before each write, no two writes would ever be under way at once. It need
not: blocks whose write has not ended are not valid on disk, so no delete names them and no note says that
they were used; and a session that is kept before its blocks are there, and meets a crash then, has as much
of its chain as there is. A block that is deleted and written again has its write behind the delete. Only a
DiskSync asks about all before it: it waits for the ends of these transfers too, and what comes later waits
for it.

No thread and no clock here: times come in as numbers.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

from kvstore.core.effects import DiskDelete, DiskNote, DiskSync, Transfer
from kvstore.core.types import TransferId, Urgency
from kvstore.tiers.disk_tickets import Ticket

__all__ = ["AGEING_SECONDS", "GiveWay", "Job", "Piece", "Told", "Turns"]

AGEING_SECONDS = 1.0
# What is no transfer. It has an order among them, and ends in nothing that a mover knows of.
Told = DiskDelete | DiskNote | DiskSync
# What is left, of the time, to a background transfer that gives way to asked-for ones of another link.
FLOOR_SHARE = 0.1


@dataclass(slots=True, eq=False)
class Job:
    """A transfer and how far it is, or what the disk is told. `count` blocks, in pieces of `piece` blocks."""

    work: Transfer | Told
    count: int
    piece: int
    queued_at: float
    # The first block that no thread has taken yet.
    next: int = 0
    pieces_running: int = 0
    # Positions: what failed; of these, what a device may still write; and what it no longer does.
    failed: set[int] = field(default_factory=set)
    late: set[int] = field(default_factory=set)
    returned: set[int] = field(default_factory=set)
    # All its pieces have ended; its end has been told.
    is_over: bool = False
    ended: bool = False
    ticket: Ticket | None = None
    # Somebody waits for it by now.
    raised: bool = False

    @property
    def urgency(self) -> Urgency:
        if self.raised:
            return Urgency.ASKED
        return self.work.urgency if isinstance(self.work, Transfer) else Urgency.ASKED

    @property
    def is_taken(self) -> bool:
        """Whether no piece is left to begin."""
        return self.next >= self.count


@dataclass(frozen=True, slots=True)
class Piece:
    """Blocks `start` to `stop` of a job."""

    job: Job
    start: int
    stop: int


class Turns:
    """The jobs of one link that have pieces left. Not for several threads without a lock."""

    def __init__(self) -> None:
        # (between which of what is told, place, number that makes each unique, job)
        self._jobs: list[tuple[int, float, int, Job]] = []
        self._count = 0
        self._span = 0
        self._told_running = 0
        self._pieces_running = 0

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: Job) -> None:
        if not isinstance(job.work, Transfer):
            self._span += 1
        self._count += 1
        heapq.heappush(self._jobs, (self._span, _place(job), self._count, job))
        if not isinstance(job.work, Transfer):
            self._span += 1

    def raise_to_asked(self, transfer: TransferId) -> Job | None:
        """The job goes on as if it had been asked for from the first. None: it was, or has no piece left."""
        for index, (span, _, number, job) in enumerate(self._jobs):
            named = isinstance(job.work, Transfer) and job.work.id == transfer
            if named and job.urgency is not Urgency.ASKED:
                job.raised = True
                self._jobs[index] = (span, _place(job), number, job)
                heapq.heapify(self._jobs)
                return job
        return None

    def first(self) -> Job | None:
        """Whose turn it is, if it may be begun now."""
        job = self._jobs[0][3] if self._jobs else None
        if job is None or self._told_running or (isinstance(job.work, DiskSync) and self._pieces_running):
            return None
        return job

    def take(self, blocks_max: int = 0) -> Piece | None:
        """The next piece of that job, of so many blocks at the most (0: as many as its pieces have); the job
        leaves the queue with its last one."""
        job = self.first()
        if job is None:
            return None
        start = job.next
        size = min(job.piece, blocks_max) if blocks_max else job.piece
        job.next = min(start + size, job.count)
        job.pieces_running += 1
        if isinstance(job.work, Transfer):
            self._pieces_running += 1
        else:
            self._told_running += 1
        if job.is_taken:
            heapq.heappop(self._jobs)
        return Piece(job, start, job.next)

    def end(self, piece: Piece) -> None:
        """One that was taken is done."""
        piece.job.pieces_running -= 1
        if isinstance(piece.job.work, Transfer):
            self._pieces_running -= 1
        else:
            self._told_running -= 1

    def drain(self) -> Iterator[Job]:
        """Takes out all that have pieces left, in their order."""
        while self._jobs:
            yield heapq.heappop(self._jobs)[3]


def _place(job: Job) -> float:
    return job.queued_at + job.urgency * AGEING_SECONDS


class GiveWay:
    """Links that share a medium: while a transfer that was asked for is in one of them, background transfers
    of the others wait between pieces, but for a floor: `FLOOR_SHARE` of the time is theirs.

    A transfer that an allocation waits for does not give way, since what was asked for may be waiting for it.
    """

    def __init__(self) -> None:
        # Asked-for transfers, queued or under way. Changed under the lock of the link that counts them.
        self.asked = 0
        self._ended_at = 0.0
        self._took_seconds = 0.0

    def hold_seconds(self, urgency: Urgency, now: float) -> float:
        """For how long the next piece has to wait, if nothing changes; 0: it may go."""
        if not self.asked or urgency is not Urgency.BACKGROUND:
            return 0.0
        return max(0.0, self._ended_at + self._took_seconds * (1 / FLOOR_SHARE - 1) - now)

    def ended(self, urgency: Urgency, now: float, seconds: float) -> None:
        if urgency is Urgency.BACKGROUND:
            self._ended_at, self._took_seconds = now, seconds
