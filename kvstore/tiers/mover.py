"""One direction between two tiers: its transfers, the threads that do them by pieces, what it has moved.

A thread takes the next piece of whose turn it is, so a transfer under way gives way to a more urgent one
after a piece. Each transfer ends exactly once, whatever happens to its pieces.

Writes to disk are several at a time, in order: each takes its ticket of the disk as it is begun, with the
mover's lock held, so that the tickets are in the order of the transfers; and its end is told after the ends
of those that were begun before it, also where it has failed long before them.
"""

import logging
import math
import threading
from collections import deque
from collections.abc import Callable
from functools import partial

from kvstore.core.effects import Transfer
from kvstore.core.errors import CheckFailed, check
from kvstore.core.types import TransferId, Urgency
from kvstore.tiers.mover_setup import MoverCounts, MoverSetup
from kvstore.tiers.moves import Part, PieceEnd, block_count
from kvstore.tiers.turns import Job, Piece, Told, Turns

__all__ = ["TRANSFERS_MAX", "Mover"]

log = logging.getLogger(__name__)

# Transfers in a mover at once: far above what the core starts, so more are a bug in it.
TRANSFERS_MAX = 64
PIECE_SECONDS_MAX = 0.1
HOLD_SECONDS_MAX = 0.02


class Mover:
    def __init__(self, setup: MoverSetup) -> None:
        check(
            setup.tickets is None or not setup.piece_bytes, f"{setup.name}: a ticket for each of the pieces"
        )
        self.error: BaseException | None = None
        self.counts = MoverCounts()
        self._setup = setup
        self._clock = setup.clock
        self._turns = Turns()
        self._changed = threading.Condition()
        # Held while an end or a return is told, so that they are told in their order.
        self._telling = threading.Lock()
        # Transfers whose ends are told in order, in that order: what has ended and what has not.
        self._in_order: deque[Job] = deque()
        self._ended_at = -math.inf
        self._stopping = False
        self._open = 0
        self._bytes_in_flight = 0
        # Daemons: a thread that hangs in a dead disk must not keep the process from ending.
        self._threads = [
            threading.Thread(target=self._run, name=f"kvstore-{setup.name}-{number}", daemon=True)
            for number in range(setup.threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def transfers_queued(self) -> int:
        """Those that have pieces left to begin."""
        return len(self._turns)

    @property
    def bytes_in_flight(self) -> int:
        """Of transfers that were given and have not ended."""
        return self._bytes_in_flight

    def put(self, transfer: Transfer) -> None:
        """Returns at once."""
        count = block_count(transfer)
        size, most = count * self._setup.frame_bytes, self._setup.in_flight_bytes_max
        piece = (
            max(1, self._setup.piece_bytes // self._setup.frame_bytes) if self._setup.piece_bytes else count
        )
        job = Job(transfer, count, max(1, piece), self._clock.now())
        with self._changed:
            check(not self._stopping, f"transfer {transfer.id} after the end of {self._setup.name}")
            check(self._open < TRANSFERS_MAX, f"{self._open} transfers in flight in {self._setup.name}")
            # One alone may be larger: a block is never cut.
            fits = not most or not self._bytes_in_flight or self._bytes_in_flight + size <= most
            check(fits, f"{self._bytes_in_flight} + {size} bytes in flight in {self._setup.name}")
            self._open += 1
            self._bytes_in_flight += size
            self._count_asked(job, 1)
            self._turns.add(job)
            self._changed.notify()

    def raise_to_asked(self, transfer: TransferId) -> None:
        """Somebody waits for it by now. Nothing to do where all of it is begun, or has ended."""
        with self._changed:
            job = self._turns.raise_to_asked(transfer)
            if job is not None:
                self._count_asked(job, 1)
                self._changed.notify()

    def put_told(self, told: Told) -> None:
        """Something for the disk to take note of, after all that was put before it."""
        with self._changed:
            check(not self._stopping, f"{type(told).__name__} after the end of {self._setup.name}")
            check(self._setup.tell is not None, f"{self._setup.name} can be told nothing")
            self._turns.add(Job(told, 1, 1, self._clock.now()))
            self._changed.notify()

    def put_stop(self) -> None:
        """No more is taken; what there is gets done, and no limit delays it."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._setup.bucket.close()

    def alive(self) -> bool:
        return self.error is None and (self._stopping or all(thread.is_alive() for thread in self._threads))

    def join(self, timeout: float) -> bool:
        """After `put_stop`: waits so long; what was not begun by then ends as failed.

        False: a thread hangs in a call.
        """
        deadline = self._clock.now() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - self._clock.now()))
        given_up: list[Job] = []
        with self._changed:
            for job in self._turns.drain():
                job.failed.update(range(job.next, job.count))
                job.next = job.count
                if isinstance(job.work, Transfer) and not job.pieces_running:
                    given_up.append(job)
                    if self._setup.tickets is not None:
                        self._in_order.append(job)
        for job in given_up:
            self._end(job)
        return not any(thread.is_alive() for thread in self._threads)

    # --- In the mover's threads.

    def _run(self) -> None:
        while (piece := self._next()) is not None:
            self._do(piece)

    def _next(self) -> Piece | None:
        """Waits for the next piece. None: there are no more."""
        with self._changed:
            while True:
                job = self._turns.first()
                if job is None:
                    if self._stopping and not self._turns:
                        return None
                    self._clock.wait(self._changed, None)
                    continue
                now = self._clock.now()
                hold = self._hold_seconds(job, now)
                if hold <= 0:
                    break
                # What it gives way to may end before: looked at again, as nobody tells.
                self._clock.wait(self._changed, min(hold, HOLD_SECONDS_MAX))
            if not job.next and isinstance(job.work, Transfer):
                self.counts.transfers_begun += 1
                self.counts.wait_seconds += now - job.queued_at
            piece = self._turns.take(self._piece_blocks_max())
            if self._setup.tickets is not None and isinstance(job.work, Transfer):
                job.ticket = self._setup.tickets.take()
                self._in_order.append(job)
            if self._turns or self._stopping:  # For the other threads, if there are any.
                self._changed.notify_all()
            return piece

    def _hold_seconds(self, job: Job, now: float) -> float:
        if self._setup.gives_way is None or self._stopping:
            return 0.0
        return self._setup.gives_way.hold_seconds(job.urgency, now)

    def _piece_blocks_max(self) -> int:
        """Under a slow limit pieces are small, so that it doesn't last for ever until one gives way."""
        rate = self._setup.bucket.bytes_per_second
        if not rate or not self._setup.piece_bytes:
            return 0
        return max(1, int(rate * PIECE_SECONDS_MAX) // self._setup.frame_bytes)

    def _do(self, piece: Piece) -> None:
        """Whatever happens, the piece ends and the thread goes on."""
        job, began = piece.job, self._clock.now()
        end = PieceEnd(failed=tuple(range(piece.start, piece.stop)))
        try:
            if isinstance(job.work, Transfer):
                end = self._setup.move(self._part(job, job.work, piece))
            elif self._setup.tell is not None:
                self._setup.tell(job.work)
        except BaseException as error:
            log.exception("%s: failed: %s", self._setup.name, job.work)
            if isinstance(error, CheckFailed) or not isinstance(error, Exception):
                self.error = error
        if job.ticket is not None:
            job.ticket.end(failed=bool(end.failed))
        self._ended_piece(piece, end, began)

    def _part(self, job: Job, transfer: Transfer, piece: Piece) -> Part:
        return Part(
            transfer=transfer,
            start=piece.start,
            stop=piece.stop,
            bucket=self._setup.bucket,
            clock=self._clock,
            returned=partial(self._came_back, job),
            ticket=job.ticket,
        )

    def _ended_piece(self, piece: Piece, end: PieceEnd, began: float) -> None:
        job, now = piece.job, self._clock.now()
        is_transfer = isinstance(job.work, Transfer)
        blocks = piece.stop - piece.start - len(end.failed)
        size = blocks * self._setup.frame_bytes
        with self._changed:
            self._turns.end(piece)
            if self._turns:
                # What waited for this to end.
                self._changed.notify_all()
            if is_transfer:
                job.failed.update(end.failed)
                job.late.update(end.late)
                self.counts.blocks_moved += blocks
                self.counts.blocks_failed += len(end.failed)
                self.counts.bytes_moved += size
            self.counts.busy_seconds += now - began
            # Of several that overlap and end in order, each has taken what came after the end before it.
            in_order = self._setup.tickets is not None
            seconds = min(end.seconds, now - self._ended_at) if in_order else end.seconds
            self._ended_at = now
            is_over = job.is_taken and not job.pieces_running
            if self._setup.gives_way is not None:
                # Its use of the memory, not what it waited for a limit.
                self._setup.gives_way.ended(job.urgency, now, end.seconds or now - began)
        if is_transfer and not end.failed and end.seconds > 0 and self._setup.measured is not None:
            self._setup.measured(size, seconds)
        if is_over and is_transfer:
            self._end(job)

    def _end(self, job: Job) -> None:
        """Tells the end of this transfer; where their order counts, of those that may be told now."""
        with self._telling:
            for each in self._to_be_told(job):
                with self._changed:
                    self._open -= 1
                    self._bytes_in_flight -= each.count * self._setup.frame_bytes
                    self._count_asked(each, -1)
                    each.ended = True
                    back = tuple(sorted(each.late & each.returned))
                if isinstance(each.work, Transfer):
                    late = tuple(sorted(each.late))
                    self._tell(each.work, self._setup.ended, tuple(sorted(each.failed)), late)
                    if back:
                        self._tell(each.work, self._setup.returned, back)

    def _to_be_told(self, job: Job) -> list[Job]:
        if self._setup.tickets is None:
            return [job]
        with self._changed:
            job.is_over = True
            told: list[Job] = []
            while self._in_order and self._in_order[0].is_over:
                told.append(self._in_order.popleft())
            return told

    def _came_back(self, job: Job, position: int) -> None:
        """Before the transfer's end is told this is only noted, and told right after it."""
        with self._telling:
            with self._changed:
                told = job.ended and position not in job.returned
                job.returned.add(position)
            if told and isinstance(job.work, Transfer):
                self._tell(job.work, self._setup.returned, (position,))

    def _tell(self, transfer: Transfer, tell: Callable[..., None], *positions: tuple[int, ...]) -> None:
        try:
            tell(transfer.id, *positions)
        except Exception as error:
            # The core will wait for it for ever: only a stop helps.
            log.critical("the end of transfer %d can't be told", transfer.id, exc_info=True)
            self.error = error

    def _count_asked(self, job: Job, step: int) -> None:
        """With the mover's lock held."""
        if self._setup.is_given_way is not None and job.urgency is Urgency.ASKED:
            self._setup.is_given_way.asked += step
