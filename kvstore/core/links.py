"""Links between neighbouring tiers: what is to be moved, and when it begins.

What waits stands in lanes by urgency (`lanes.py`). Each lane has few transfers under way (`transfers.py`), of
bounded size, and begins only what no lane before it could begin instead.
"""

from collections.abc import Callable, Collection

import numpy as np

from kvstore.core.ahead import Ahead
from kvstore.core.blocks import NO_FRAME, Rows
from kvstore.core.choosing import Choosing
from kvstore.core.config import StoreConfig
from kvstore.core.effects import Transfer
from kvstore.core.frames import clear_passage
from kvstore.core.lanes import ORDER, Lane, make_lanes
from kvstore.core.late import LateFrames
from kvstore.core.memory import Memory
from kvstore.core.ports import Figures, LinkState
from kvstore.core.transfers import FOREGROUND, Moved, Transfers
from kvstore.core.types import (
    ASKED,
    BACKGROUND,
    COPY,
    CPU,
    DISK,
    LOAD,
    PREFETCH,
    READ,
    WRITE,
    Link,
    Tier,
    TransferId,
)
from kvstore.core.waiting import Waiting
from kvstore.core.yielding import Yielding

__all__ = ["Links"]

# Why blocks go to disk, or don't.
WHY_TURNS = "what sessions have is kept beyond the memory tiers (--disk-admission all)"
WHY_JUDGED = "it was judged to be worth a write, or its engine said at Free that it is kept (SESSION)"
WHY_LIKELY = "no session has it, and it is likely enough to be read again"
WHY_DRAINED = "the service is drained: all that is worth keeping is written"
WHY_SHED = "too many blocks wait for their copy down: these are asked for again later"


class Links:
    """All lanes."""

    def __init__(self, config: StoreConfig, memory: Memory, is_waiting: Callable[[float], bool]) -> None:
        """`is_waiting`: whether somebody waits for GPU frames at a time."""
        self._config = config
        self._memory = memory
        self.lanes = make_lanes(config, memory.shares)
        self._order = [self.lanes[each] for each in ORDER]
        self._copies, self._writes = self.lanes[COPY, BACKGROUND], self.lanes[WRITE, BACKGROUND]
        self._reads = self.lanes[READ, ASKED]
        self._ahead_lanes = self.lanes[READ, PREFETCH], self.lanes[LOAD, PREFETCH]
        self.late = LateFrames(config, memory)
        self.ahead = Ahead(config, memory, self.lanes)
        self.yielding = Yielding(config, self.lanes, is_waiting)
        # Who waits for which block to move.
        self.waiting = Waiting()
        self._choosing = Choosing(config, memory, self.lanes, self.late, self.ahead, self.waiting)
        self.refused = self._choosing.refused
        self.transfers = Transfers(memory, self.lanes, self.late, self.ahead)

    def ask(self, link: Link, rows: Collection[int]) -> None:
        """An engine waits for these blocks."""
        self.lanes[link, FOREGROUND[link]].ask(rows)
        if link == LOAD and any(lane.under_way for lane in self._ahead_lanes):
            self.transfers.hurry(rows)

    def ask_down(self, link: Link, rows: Rows) -> None:
        """Cached blocks are to have a copy one tier further down, when the link has nothing better to do."""
        (source, target), blocks = link, self._memory.blocks
        lacking = (blocks.frame[target][rows] == NO_FRAME) & ~blocks.queued[source][rows]
        # Sequences that share blocks may end together: each is asked for once.
        rows = blocks.distinct(rows[lacking & ~blocks.unwanted[rows]])
        taken = self._make_place(link, rows.size)
        if link == WRITE and rows.size:
            self._note_admission(rows, taken)
        lane = self.lanes[link, BACKGROUND]
        blocks.queued[source][rows] = True
        lane.add(rows.tolist())
        if taken < rows.size:
            # The last of these; where tenants share, the last ones of who has most. On the GPU nothing is
            # spared for them any more.
            self._memory.room_was_made |= link == COPY
            blocks.unqueue(source, lane.give_up(rows.size - taken))

    def _note_admission(self, rows: Rows, taken: int) -> None:
        """For who asks why something is on disk, or isn't: of what sessions have, and of the rest."""
        # Lone sequences have negative numbers.
        has_session, are_taken = self._memory.blocks.owner[rows] > 0, np.arange(rows.size) < taken
        for of_sessions in (True, False):
            part = has_session if of_sessions else ~has_session
            if count := np.count_nonzero(part):
                self._note_part(rows[part], int(np.count_nonzero(part & are_taken)), of_sessions)
                if count == rows.size:
                    break

    def _note_part(self, rows: Rows, taken: int, of_sessions: bool) -> None:
        memory, is_whole = self._memory, taken == rows.size
        waiting = self._waiting_down

        def figures() -> Figures:
            asked = () if of_sessions or memory.admission is None else memory.admission.told(DISK, rows)
            return (
                ("blocks_waiting", float(waiting)),
                ("queue_blocks_max", float(self._config.queue_blocks_max)),
                ("writes_failed_in_a_row", float(self.transfers.writes_failed_in_a_row)),
                *asked,
            )

        chosen = "written to disk" if is_whole else "shed"
        reason = self._why_written(of_sessions) if is_whole else WHY_SHED
        counts = (("blocks_taken", float(taken)), ("blocks_shed", float(rows.size - taken)))
        memory.note_admission(rows, chosen, reason, counts, figures)

    def _why_written(self, of_sessions: bool) -> str:
        if self.yielding.is_draining:
            return WHY_DRAINED
        if not of_sessions:
            return WHY_LIKELY
        return WHY_JUDGED if self._config.judges_turns else WHY_TURNS

    def _make_place(self, link: Link, count: int) -> int:
        """How many more rows may wait in the background. Writes to disk are shed for copies; what is shed
        is not gone: who wants it on disk asks again (`writing.py`)."""
        shed = self._memory.blocks_shed
        over = self._waiting_down + count - self._config.queue_blocks_max
        if over <= 0:
            return count
        if link == COPY:
            given_up = self._writes.give_up(over)
            self._memory.blocks.unqueue(CPU, given_up)
            shed[DISK] += len(given_up)
            over -= len(given_up)
        over = min(over, count)
        shed[link[1]] += over
        return count - over

    def ask_ahead(self, tier: Tier, rows: Rows) -> None:
        """Blocks that can be found, each after its parent, are to be brought up to the GPU or the CPU tier,
        when the links have nothing better to do and as far as there is room that nobody needs."""
        self.ahead.wish(tier, rows)

    @property
    def places_left(self) -> int:
        """For so many blocks more in the background before some are shed."""
        return max(0, self._config.queue_blocks_max - self._waiting_down)

    @property
    def _waiting_down(self) -> int:
        """Blocks that wait for their copy down in the background."""
        return len(self._copies.rows) + len(self._writes.rows)

    @property
    def is_writing(self) -> bool:
        """Whether anything is on its way to disk, or waits for it."""
        return bool(self._writes.rows or self._writes.under_way)

    def state(self, link: Link) -> LinkState:
        """As one finds it who asks for blocks now."""
        lane = self.lanes[link, FOREGROUND[link]]
        return LinkState(
            blocks_ahead=len(lane.rows) + self.transfers.blocks_moving(lane),
            busy_share=self.transfers.busy_share(link),
        )

    # ------------------------------------------------------------------------ starting

    def start(self, time: float) -> list[Transfer]:
        """Starts what the links have room for."""
        started: list[Transfer] = []
        for lane in self._order:
            if lane.rows:
                self._start_lane(lane, time, started)
        if self._copies.may_begin:
            # A write that found no room on disk has made some in the CPU tier.
            self._start_lane(self._copies, time, started)
        if self._reads.rows and not self.transfers.are_under_way:
            self._free_reads(time, started)
        if self._copies.stalled or self._memory.room.copies_stalled:
            self._note_stalled(frozenset(self._copies.stalled))
        return started

    def _free_reads(self, time: float, started: list[Transfer]) -> None:
        """Somebody waits for a read, and nothing is under way that could make room for it. What holds the CPU
        frames may have to be written behind parents that wait for these very frames: then some of it goes.
        Where there is none of that the reads are refused: nobody waits for ever."""
        lane = self._reads
        lane.resume()
        self._start_lane(lane, time, started)
        if not lane.rows or self.transfers.are_under_way:
            return
        lane.resume()
        if clear_passage(self._memory, min(len(lane.rows), lane.blocks_max)):
            self._start_lane(lane, time, started)
        if not self.transfers.are_under_way:
            self._choosing.refuse(lane.take(len(lane.rows)))

    def _note_stalled(self, places: frozenset[int]) -> None:
        memory, room = self._memory, self._memory.room
        # Blocks that were spared for these tenants' copies may go without them.
        memory.room_was_made |= not places <= room.copies_stalled
        memory.blocks.changes += places != room.copies_stalled
        room.copies_stalled = places

    def _start_lane(self, lane: Lane, time: float, started: list[Transfer]) -> None:
        # Each row that waits is looked at once at the most.
        left, most = len(lane.rows), lane.under_way_max
        if lane.may_begin and lane.urgency in (PREFETCH, BACKGROUND):
            most = self.yielding.transfers_max(lane, time)
        while left > 0 and most > 0 and lane.may_begin:
            if lane is self._writes and lane.under_way and left < lane.blocks_max:
                # Each write is a transaction with syncs: few blocks gather while another is under way.
                break
            left -= lane.blocks_max
            rows = self._choosing.next(lane)
            if rows.size:
                started.append(self.transfers.begin(lane, rows, self.yielding.urgency(lane, time)))
                most -= 1

    def take_refused(self) -> Rows:
        """Blocks that are not read now: who waits for them is to be told."""
        return self._choosing.take_refused()

    def resume(self) -> None:
        """Something has moved, or time has passed: room that was lacking may be there."""
        for lane in self._order:
            lane.resume()

    # -------------------------------------------------------------------------- ending

    def end(self, transfer: TransferId, failed: tuple[int, ...], late: tuple[int, ...]) -> Moved:
        """As `Transfers.end`; what waited for room may find some."""
        moved = self.transfers.end(transfer, failed, late)
        self.resume()
        return moved

    def return_frames(self, transfer: TransferId, positions: tuple[int, ...]) -> None:
        """The device has let go of frames of late reads."""
        self.late.give_back(transfer, positions)
        self.resume()
