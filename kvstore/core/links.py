"""Links between neighbouring tiers: what is to be moved, and what is on its way.

What waits stands in lanes by urgency (`lanes.py`). Each lane has few transfers under way, of bounded
size, and begins only what no lane before it could begin instead.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvstore.core.blocks import NO_FRAME, NO_ROW, NO_ROWS, Rows
from kvstore.core.config import StoreConfig
from kvstore.core.effects import Transfer
from kvstore.core.errors import check
from kvstore.core.lanes import COPY, LOAD, ORDER, READ, WRITE, Lane, Link, make_lanes
from kvstore.core.late import LateFrames
from kvstore.core.memory import Memory
from kvstore.core.types import ASKED, BACKGROUND, CPU, DISK, GPU, NEEDED, Tier, TransferId

__all__ = ["COPY", "LOAD", "READ", "WRITE", "Link", "Links", "Moved"]

# What an engine or a swap asks for, by link.
FOREGROUND = {LOAD: ASKED, READ: ASKED, COPY: NEEDED}


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

    def __init__(self, config: StoreConfig, memory: Memory) -> None:
        self._config = config
        self._memory = memory
        self.lanes = make_lanes(config)
        self._order = [self.lanes[each] for each in ORDER]
        self.late = LateFrames(config, memory)
        self._under_way: dict[TransferId, tuple[Lane, Rows]] = {}
        self._last_id = 0
        # Rows that were to be read while the device is stuck.
        self._refused: list[int] = []
        self.blocks_moved_in = [0 for _ in Tier]
        self.blocks_failed = [0 for _ in Tier]

    def ask(self, link: Link, rows: Iterable[int]) -> None:
        """An engine waits for these blocks."""
        lane = self.lanes[link, FOREGROUND[link]]
        lane.add(rows)
        lane.stalled = False

    def ask_down(self, link: Link, rows: Rows) -> None:
        """Cached blocks are to have a copy one tier further down, when the link has nothing better to do."""
        (source, target), blocks = link, self._memory.blocks
        lacking = (blocks.frame[target][rows] == NO_FRAME) & ~blocks.queued[source][rows]
        # Sequences that share blocks may end together: each is asked for once.
        rows = blocks.distinct(rows[lacking & ~blocks.unwanted[rows]])
        blocks.queued[source][rows] = True
        self.lanes[link, BACKGROUND].add(rows.tolist())

    @property
    def under_way(self) -> dict[TransferId, tuple[Link, Rows]]:
        return {transfer: (lane.link, rows) for transfer, (lane, rows) in self._under_way.items()}

    def lanes_under_way(self) -> list[Lane]:
        """Of each transfer under way its lane."""
        return [lane for lane, _ in self._under_way.values()]

    # ------------------------------------------------------------------------ starting

    def start(self) -> list[Transfer]:
        """Starts what the links have room for."""
        started: list[Transfer] = []
        for lane in self._order:
            # Each row that waits is looked at once at the most.
            left = len(lane.rows)
            while left > 0 and lane.may_begin:
                left -= self._config.transfer_blocks_max
                rows = self._next(lane)
                if rows.size:
                    started.append(self._begin(lane, rows))
        self._memory.copies_stalled = self.lanes[COPY, BACKGROUND].stalled
        return started

    def take_refused(self) -> Rows:
        """Blocks that are not read now, since the device is stuck: who waits for them is to be told."""
        refused, self._refused = np.array(self._refused, np.intp), []
        return refused

    def resume(self) -> None:
        """Something has moved, or time has passed: room that was lacking may be there."""
        for lane in self._order:
            lane.stalled = False

    def _next(self, lane: Lane) -> Rows:
        """Rows of the lane's next transfer, their target frames taken; perhaps none."""
        rows = lane.take(self._config.transfer_blocks_max)
        if lane.link == LOAD:
            return self._next_load(rows)
        if lane.link == READ:
            return self._next_read(rows, lane)
        if lane.link == COPY:
            return self._next_copy(rows, lane)
        return self._next_write(rows, lane)

    def _next_load(self, rows: Rows) -> Rows:
        rows = rows[self._wanted(rows)]
        at_hand = self._memory.blocks.valid[CPU][rows]
        self.ask(READ, rows[~at_hand].tolist())
        ready: Rows = rows[at_hand]
        return ready

    def _next_read(self, rows: Rows, lane: Lane) -> Rows:
        """Reads pass through the CPU tier, and may use the frames kept for that passage."""
        blocks = self._memory.blocks
        rows = rows[self._wanted(rows)]
        self.ask(LOAD, rows[blocks.valid[CPU][rows]].tolist())
        rows = rows[(blocks.frame[CPU][rows] == NO_FRAME) & blocks.valid[DISK][rows]]
        if self.late.too_many:
            self._refused += rows.tolist()
            return NO_ROWS
        fitting = self._take_frames(CPU, rows)
        lane.put_back(rows[fitting.size :])
        return fitting

    def _wanted(self, rows: Rows) -> NDArray[np.bool_]:
        """Whether a GPU frame waits to be filled and no transfer fills it yet."""
        blocks = self._memory.blocks
        wanted: NDArray[np.bool_] = blocks.unfilled(rows) & (blocks.pins[GPU][rows] == 0)
        return wanted

    def _next_copy(self, rows: Rows, lane: Lane) -> Rows:
        """Swapped sequences have their CPU frames already. Cached blocks get theirs as there is room:
        those on their way to disk wait for it, others are let go."""
        blocks = self._memory.blocks
        blocks.queued[GPU][rows] = False
        rows = rows[blocks.valid[GPU][rows]]
        taken = blocks.frame[CPU][rows] != NO_FRAME
        begun = blocks.valid[CPU][rows] | (blocks.pins[CPU][rows] > 0)
        ready = blocks.indexed[rows] | blocks.offered[rows]
        swapped = rows[taken & ~begun & ready]
        # This copy is the one that was offered. A later swap of the same block has a fence of its own.
        blocks.offered[swapped] = False
        cached = rows[~taken & blocks.indexed[rows] & ~blocks.valid[DISK][rows]]
        below = (blocks.frame[CPU] != NO_FRAME) | blocks.valid[DISK]
        cached = cached[self._parent_is(below, cached)]
        cached = cached[~blocks.unwanted[cached]]
        spare = self._config.cpu_frames_reserved
        fitting = self._take_frames(CPU, cached, spare, in_background=True)
        lacking = cached[fitting.size :]
        lacking = lacking[blocks.to_disk[lacking]]
        blocks.queued[GPU][lacking] = True
        lane.put_back(lacking)
        return np.concatenate([swapped, fitting])

    def _next_write(self, rows: Rows, lane: Lane) -> Rows:
        """Blocks whose parent is on its way down come again after it."""
        blocks = self._memory.blocks
        blocks.queued[CPU][rows] = False
        rows = rows[blocks.valid[CPU][rows] & (blocks.frame[DISK][rows] == NO_FRAME)]
        rows = rows[blocks.indexed[rows] & ~blocks.unwanted[rows]]
        rows = rows[np.argsort(blocks.depth[rows], kind="stable")]
        ready = self._parent_is(blocks.valid[DISK], rows)
        early, rows = rows[~ready], rows[ready]
        for row, parent in zip(early.tolist(), blocks.parent[early].tolist(), strict=True):
            # To be wished for is not to be on its way: a parent whose write has failed is not waited for.
            copied_first = blocks.queued[GPU][parent] and blocks.to_disk[parent]
            if blocks.queued[CPU][parent] or blocks.pins[CPU][parent] or copied_first:
                blocks.queued[CPU][row] = True
                lane.add([row])
        # A block is not written at the cost of the one that it hangs on.
        parents = blocks.parent[rows]
        parents = np.unique(parents[parents != NO_ROW])
        blocks.pin(DISK, parents)
        rows = self._take_frames(DISK, rows)
        blocks.unpin(DISK, parents)
        return rows

    def _take_frames(self, tier: Tier, rows: Rows, spare: int = 0, *, in_background: bool = False) -> Rows:
        """Target frames for as many of the leading rows as there is room for, by halves."""
        count = rows.size
        while count and not self._memory.make_room(tier, count, spare, in_background=in_background):
            count //= 2
        self._memory.add_replicas(tier, rows[:count])
        return rows[:count]

    def _parent_is(self, there: NDArray[np.bool_], rows: Rows) -> NDArray[np.bool_]:
        """Whether each block's parent is there, goes with it in the same transfer, or does not exist."""
        good: list[bool] = []
        together: set[int] = set()
        parents = self._memory.blocks.parent[rows]
        present = (there[parents] | (parents == NO_ROW)).tolist()
        for row, parent, is_there in zip(rows.tolist(), parents.tolist(), present, strict=True):
            good.append(is_there or parent in together)
            if good[-1]:
                together.add(row)
        return np.array(good, np.bool_)

    def _begin(self, lane: Lane, rows: Rows) -> Transfer:
        source, target = lane.link
        blocks = self._memory.blocks
        blocks.pin(source, rows)
        blocks.pin(target, rows)
        self._last_id += 1
        transfer = TransferId(self._last_id)
        self._under_way[transfer] = (lane, rows)
        lane.under_way += 1
        keyed = DISK in lane.link
        return Transfer(
            id=transfer,
            source=source,
            target=target,
            source_frames=tuple(blocks.frame[source][rows].tolist()),
            target_frames=tuple(blocks.frame[target][rows].tolist()),
            keys=tuple(self._memory.stored_key(row) for row in rows.tolist()) if keyed else (),
            urgency=lane.urgency,
        )

    # -------------------------------------------------------------------------- ending

    def end(self, transfer: TransferId, failed: tuple[int, ...], late: tuple[int, ...]) -> Moved:
        """The one end of a transfer: good copies become valid, frames of bad ones go back."""
        check(transfer in self._under_way, f"transfer {transfer} ended twice, or never began")
        lane, rows = self._under_way.pop(transfer)
        lane.under_way -= 1
        self.resume()
        blocks, (source, target) = self._memory.blocks, lane.link
        blocks.unpin(source, rows)
        blocks.unpin(target, rows)
        outcome = np.zeros(rows.size, np.int8)
        outcome[list(failed)] = 1
        check(not late or (lane.link == READ and set(late) <= set(failed)), "only a failed read can be late")
        outcome[list(late)] = 2
        good, bad, delayed = rows[outcome == 0], rows[outcome == 1], rows[list(late)]
        blocks.valid[target][good] = True
        self.blocks_moved_in[target] += good.size
        self.blocks_failed[target] += rows.size - good.size
        if target is DISK:
            # What can't be written is not tried again before it is asked for again.
            blocks.to_disk[bad] = False
        if late:
            self.late.keep(transfer, late, delayed)
        # A GPU frame that could not be filled belongs to its sequences: they decide (swaps.py).
        if target is not GPU:
            self._memory.drop_replicas(target, bad)
            self._memory.eviction.touch(target, good[blocks.indexed[good]][::-1])
        return Moved(lane.link, good, bad, delayed)

    def return_frames(self, transfer: TransferId, positions: tuple[int, ...]) -> None:
        """The device has let go of frames of late reads."""
        self.late.give_back(transfer, positions)
        self.resume()
