"""Transfers: blocks on their way between two tiers, from the pins at their begin to the one end of each.

Which of them begin when is decided in `links.py`.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvstore.core.ahead import Ahead
from kvstore.core.blocks import NO_ROW, Rows
from kvstore.core.busy import HeldShare
from kvstore.core.effects import Transfer
from kvstore.core.errors import check
from kvstore.core.lanes import Lane, Lanes
from kvstore.core.late import LateFrames
from kvstore.core.memory import Memory
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

__all__ = ["FOREGROUND", "Moved", "Transfers"]

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


class Transfers:
    """Those under way, by id."""

    def __init__(self, memory: Memory, lanes: Lanes, late: LateFrames, ahead: Ahead) -> None:
        self._memory = memory
        self._writes = lanes[WRITE, BACKGROUND]
        self._late = late
        self._ahead = ahead
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

    @property
    def under_way(self) -> dict[TransferId, tuple[Link, Rows]]:
        return {transfer: (lane.link, rows) for transfer, (lane, rows) in self._under_way.items()}

    @property
    def are_under_way(self) -> bool:
        """Whether any are."""
        return bool(self._under_way)

    def lanes_under_way(self) -> list[Lane]:
        """Of each transfer under way its lane."""
        return [lane for lane, _ in self._under_way.values()]

    def blocks_moving(self, lane: Lane) -> int:
        return sum([rows.size for other, rows in self._under_way.values() if other is lane])

    def busy_share(self, link: Link) -> float:
        """For which part of the last second it has worked for somebody who waits."""
        return self._busy[link].at(self._memory.now)

    def begin(self, lane: Lane, rows: Rows, urgency: Urgency) -> Transfer:
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
            keys=tuple(self._memory.replicas.stored_keys(rows)) if keyed else (),
            urgency=urgency,
        )

    def _note_busy(self, lane: Lane) -> None:
        if lane.urgency is FOREGROUND.get(lane.link):
            self._busy[lane.link].set(lane.under_way > 0, self._memory.now)

    def hurry(self, rows: Collection[int]) -> None:
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
        if target is CPU and len(self._ahead):
            self._ahead.pass_on(good)
            self._ahead.fulfil(rows[outcome > 0])
        if late:
            self._late.keep(transfer, late, delayed)
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
