"""Links between neighbouring tiers: what is to be moved, and what is on its way.

What waits stands in lanes by urgency (`lanes.py`). Each lane has few transfers under way, of bounded
size, and begins only what no lane before it could begin instead.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvstore.core.ahead import Ahead
from kvstore.core.blocks import NO_FRAME, NO_ROW, Rows
from kvstore.core.busy import HeldShare
from kvstore.core.choosing import Choosing
from kvstore.core.config import StoreConfig
from kvstore.core.decisions import OWNERS_MAX
from kvstore.core.effects import Transfer
from kvstore.core.errors import check
from kvstore.core.lanes import ORDER, Lane, make_lanes
from kvstore.core.late import LateFrames
from kvstore.core.memory import Memory
from kvstore.core.ports import LinkState
from kvstore.core.types import (
    ASKED,
    BACKGROUND,
    COPY,
    CPU,
    DISK,
    GPU,
    LOAD,
    NEEDED,
    PREFETCH,
    READ,
    WRITE,
    Link,
    Tier,
    TransferId,
    Urgency,
)
from kvstore.core.yielding import Yielding

__all__ = ["Links", "Moved"]

# What an engine or a swap asks for, by link.
FOREGROUND = {LOAD: ASKED, READ: ASKED, COPY: NEEDED}
BUSY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Moved:
    """A transfer that has ended: which of its blocks are good in the target tier now, which could not be
    had, and which not in time: these are still where they were."""

    link: Link
    good: Rows
    bad: Rows
    late: Rows


class Links:
    """All lanes, and the transfers under way by id."""

    def __init__(self, config: StoreConfig, memory: Memory, is_waiting: Callable[[float], bool]) -> None:
        """`is_waiting`: whether somebody waits for GPU frames at a time."""
        self._config = config
        self._memory = memory
        self.lanes = make_lanes(config, memory.shares)
        self._order = [self.lanes[each] for each in ORDER]
        self._copies, self._writes = self.lanes[COPY, BACKGROUND], self.lanes[WRITE, BACKGROUND]
        self._ahead_lanes = self.lanes[READ, PREFETCH], self.lanes[LOAD, PREFETCH]
        self.late = LateFrames(config, memory)
        self.ahead = Ahead(config, memory, self.lanes)
        self.yielding = Yielding(config, self.lanes, is_waiting)
        self._choosing = Choosing(config, memory, self.lanes, self.late, self.ahead)
        self.refused = self._choosing.refused
        self._under_way: dict[TransferId, tuple[Lane, Rows]] = {}
        # Of what was begun ahead of need: somebody waits for it by now. The first are still to be told.
        self._raised: list[TransferId] = []
        self._hurried: set[TransferId] = set()
        self._last_id = 0
        # Whether a link works for somebody who waits: by link, in the last second.
        self._busy = {link: HeldShare(BUSY_SECONDS) for link in FOREGROUND}
        self.writes_failed_in_a_row = 0
        self.blocks_moved_in = [0 for _ in Tier]
        self.blocks_failed = [0 for _ in Tier]

    def ask(self, link: Link, rows: Collection[int]) -> None:
        """An engine waits for these blocks."""
        self.lanes[link, FOREGROUND[link]].ask(rows)
        if link == LOAD and any(lane.under_way for lane in self._ahead_lanes):
            self._hurry(rows)

    def _hurry(self, rows: Collection[int]) -> None:
        """What brings one of these, and nobody waited for, is not to stand behind what came later."""
        for transfer, (lane, moving) in self._under_way.items():
            is_ahead = lane.urgency is PREFETCH and transfer not in self._hurried
            if is_ahead and not set(moving.tolist()).isdisjoint(rows):
                self._hurried.add(transfer)
                self._raised.append(transfer)

    def take_raised(self) -> tuple[TransferId, ...]:
        """Transfers that somebody waits for since the last look."""
        raised, self._raised = tuple(self._raised), []
        return raised

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
        """For who asks why something is on disk, or isn't."""
        waiting = float(len(self._copies.rows) + len(self._writes.rows))
        self._memory.decisions.note_lot(
            "admit",
            "written to disk" if taken == rows.size else "shed",
            "kept beyond the memory tiers"
            if taken == rows.size
            else "too many blocks wait for their copy down",
            self._memory.blocks.owner[rows[:OWNERS_MAX]],
            (
                ("blocks_taken", float(taken)),
                ("blocks_shed", float(rows.size - taken)),
                ("blocks_waiting", waiting),
                ("queue_blocks_max", float(self._config.queue_blocks_max)),
                ("writes_failed_in_a_row", float(self.writes_failed_in_a_row)),
            ),
        )

    def _make_place(self, link: Link, count: int) -> int:
        """How many more rows may wait in the background. Writes to disk are shed for copies; what is shed
        is not gone: who wants it on disk asks again (`writing.py`)."""
        waiting, shed = len(self._copies.rows) + len(self._writes.rows), self._memory.blocks_shed
        over = waiting + count - self._config.queue_blocks_max
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
    def is_writing(self) -> bool:
        """Whether anything is on its way to disk, or waits for it."""
        return bool(self._writes.rows or self._writes.under_way)

    @property
    def under_way(self) -> dict[TransferId, tuple[Link, Rows]]:
        return {transfer: (lane.link, rows) for transfer, (lane, rows) in self._under_way.items()}

    def lanes_under_way(self) -> list[Lane]:
        """Of each transfer under way its lane."""
        return [lane for lane, _ in self._under_way.values()]

    def state(self, link: Link) -> LinkState:
        """As one finds it who asks for blocks now."""
        lane = self.lanes[link, FOREGROUND[link]]
        moving = sum([rows.size for other, rows in self._under_way.values() if other is lane])
        share = self._busy[link].at(self._memory.decisions.now)
        return LinkState(blocks_ahead=len(lane.rows) + moving, busy_share=share)

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
        if self._copies.stalled or self._memory.room.copies_stalled:
            self._note_stalled(frozenset(self._copies.stalled))
        return started

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
                started.append(self._begin(lane, rows, self.yielding.urgency(lane, time)))
                most -= 1

    def take_refused(self) -> Rows:
        """Blocks that are not read now, since the device is stuck: who waits for them is to be told."""
        return self._choosing.take_refused()

    def resume(self) -> None:
        """Something has moved, or time has passed: room that was lacking may be there."""
        for lane in self._order:
            lane.resume()

    def _begin(self, lane: Lane, rows: Rows, urgency: Urgency) -> Transfer:
        source, target = lane.link
        blocks = self._memory.blocks
        blocks.pin(source, rows)
        blocks.pin(target, rows)
        self._last_id += 1
        transfer = TransferId(self._last_id)
        self._under_way[transfer] = (lane, rows)
        lane.under_way += 1
        self._note_busy(lane)
        keyed = DISK in lane.link
        return Transfer(
            id=transfer,
            source=source,
            target=target,
            source_frames=tuple(blocks.frame[source][rows].tolist()),
            target_frames=tuple(blocks.frame[target][rows].tolist()),
            keys=tuple(self._memory.replicas.stored_key(row) for row in rows.tolist()) if keyed else (),
            urgency=urgency,
        )

    def _note_busy(self, lane: Lane) -> None:
        if lane.urgency is FOREGROUND.get(lane.link):
            self._busy[lane.link].set(lane.under_way > 0, self._memory.decisions.now)

    # -------------------------------------------------------------------------- ending

    def end(self, transfer: TransferId, failed: tuple[int, ...], late: tuple[int, ...]) -> Moved:
        """The one end of a transfer: good copies become valid, frames of bad ones go back."""
        check(transfer in self._under_way, f"transfer {transfer} ended twice, or never began")
        lane, rows = self._under_way[transfer]
        if lane is self._writes:
            first = next(id for id, (other, _) in self._under_way.items() if other is lane)
            check(transfer == first, f"write {transfer} ended before {first}, which was begun before it")
        del self._under_way[transfer]
        self._hurried.discard(transfer)
        lane.under_way -= 1
        self._note_busy(lane)
        self.resume()
        blocks, (source, target) = self._memory.blocks, lane.link
        blocks.unpin(source, rows)
        blocks.unpin(target, rows)
        outcome = np.zeros(rows.size, np.int8)
        outcome[list(failed)] = 1
        check(not late or (lane.link == READ and set(late) <= set(failed)), "only a failed read can be late")
        outcome[list(late)] = 2
        if lane is self._writes:
            self._end_write(rows, outcome)
        good, bad, delayed = rows[outcome == 0], rows[outcome == 1], rows[list(late)]
        blocks.fill(target, good)
        if self._memory.prefix.changes is not None:
            self._memory.prefix.changes.stored(target, good[blocks.indexed[good]])
        self.blocks_moved_in[target] += good.size
        self.blocks_failed[target] += rows.size - good.size
        if target is CPU and len(self.ahead):
            self.ahead.pass_on(good)
            self.ahead.fulfil(rows[outcome > 0])
        if late:
            self.late.keep(transfer, late, delayed)
        # A GPU frame that could not be filled belongs to its sequences: they decide (swaps.py).
        if target is not GPU:
            self._memory.replicas.drop(target, bad)
            self._memory.eviction.touch(target, good[blocks.indexed[good]][::-1])
        return Moved(lane.link, good, bad, delayed)

    def _end_write(self, rows: Rows, outcome: NDArray[np.int8]) -> None:
        """Nothing becomes valid on disk without its parent there. One that was begun while its parent was
        under way may have been stored before anybody knew that the parent had failed: it counts as failed,
        and is deleted."""
        blocks, lane = self._memory.blocks, self._writes
        there = blocks.valid[DISK]
        there[rows[outcome == 0]] = True
        parents = blocks.parent[rows]
        hangs = blocks.indexed[rows] & (parents != NO_ROW)
        # Parents stand before their children: each time round one generation more is found out.
        while (orphans := (outcome == 0) & hangs & ~there[parents]).any():
            outcome[orphans] = 1
            there[rows[orphans]] = False
            self._memory.replicas.delete(rows[orphans])
        failed = bool(outcome.any())
        # What fails because of one that failed before it is no failure of its own.
        if not failed:
            self.writes_failed_in_a_row = 0
        elif not lane.must_empty:
            self.writes_failed_in_a_row += 1
        lane.must_empty = (lane.must_empty or failed) and lane.under_way > 0

    def return_frames(self, transfer: TransferId, positions: tuple[int, ...]) -> None:
        """The device has let go of frames of late reads."""
        self.late.give_back(transfer, positions)
        self.resume()
