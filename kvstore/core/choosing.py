"""Which of the rows that wait in a lane go into its next transfer, and into which frames."""

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from kvstore.core.ahead import Ahead
from kvstore.core.blocks import NO_FRAME, NO_ROW, NO_ROWS, Rows
from kvstore.core.config import StoreConfig
from kvstore.core.frames import Purpose, make_room
from kvstore.core.lanes import Lane, Lanes
from kvstore.core.late import LateFrames
from kvstore.core.memory import Memory
from kvstore.core.shares import NOBODY
from kvstore.core.types import ASKED, BACKGROUND, COPY, CPU, DISK, GPU, LOAD, NEEDED, PREFETCH, READ, Tier
from kvstore.core.waiting import Waiting

__all__ = ["Choosing"]

# What frames are for, in words; and why a block gets none on disk.
WHY_READ = "blocks that a sequence comes in with pass through on their way up from disk"
WHY_AHEAD = "blocks are brought up from disk before anybody asks for them (Prefetch)"
WHY_COPY = "cached blocks get a copy here, so that they can leave the GPU at once"
WHY_WRITE = "blocks are written here"
WHY_SHED = "no room on disk: all that is there is in use, hung on, or another tenant's share"


class Choosing:
    """Passes over what needs nothing any more, and takes target frames for the rest."""

    def __init__(
        self,
        config: StoreConfig,
        memory: Memory,
        lanes: Lanes,
        late: LateFrames,
        ahead: Ahead,
        waiting: Waiting,
    ) -> None:
        self._config = config
        self._memory = memory
        self._lanes = lanes
        self._late = late
        self._ahead = ahead
        self._waiting = waiting
        # Rows that were to be read while the device is stuck, or for which no room can be made.
        self.refused: list[int] = []

    def next(self, lane: Lane) -> Rows:
        """Rows of the lane's next transfer, their target frames taken; perhaps none."""
        rows = lane.take(lane.blocks_max)
        if lane.urgency is PREFETCH:
            return self._next_ahead(rows, lane)
        if lane.link == LOAD:
            return self._next_load(rows)
        if lane.link == READ:
            return self._next_read(rows, lane)
        if lane.link == COPY:
            return self._next_copy(rows, lane)
        return self._next_write(rows, lane)

    def refuse(self, rows: Rows) -> None:
        """These are not read now."""
        self.refused += rows.tolist()

    def take_refused(self) -> Rows:
        """Blocks that are not read now: who waits for them is to be told."""
        refused = np.array(self.refused, np.intp)
        self.refused.clear()
        return refused

    def _next_load(self, rows: Rows) -> Rows:
        rows = rows[self._wanted(rows)]
        at_hand = self._memory.blocks.valid[CPU][rows]
        self._lanes[READ, ASKED].ask(rows[~at_hand].tolist())
        ready: Rows = rows[at_hand]
        return ready

    def _next_read(self, rows: Rows, lane: Lane) -> Rows:
        """Reads pass through the CPU tier, and may use the frames kept for that passage."""
        blocks = self._memory.blocks
        rows = rows[self._wanted(rows)]
        self._lanes[LOAD, ASKED].ask(rows[blocks.valid[CPU][rows]].tolist())
        rows = rows[(blocks.frame[CPU][rows] == NO_FRAME) & blocks.valid[DISK][rows]]
        if self._late.too_many:
            self.refuse(rows)
            return NO_ROWS
        fitting, lacking = self._take_frames(CPU, rows, lambda: self._to_read(rows))
        lane.put_back(lacking)
        return fitting

    def _to_read(self, rows: Rows) -> Purpose:
        """For those who wait for them."""
        return Purpose(WHY_READ, self._waiting.who(GPU, rows))

    def _wanted(self, rows: Rows) -> NDArray[np.bool_]:
        """Whether a GPU frame waits to be filled and no transfer fills it yet."""
        blocks = self._memory.blocks
        wanted: NDArray[np.bool_] = blocks.unfilled(rows) & (blocks.pins[GPU][rows] == 0)
        return wanted

    def _next_ahead(self, rows: Rows, lane: Lane) -> Rows:
        """A GPU frame only where one is free, and a CPU frame not at the cost of what is used or still has
        to be written."""
        if lane.link == LOAD:
            rows = self._ahead.to_load(rows)
            pool, marks = self._memory.pools[GPU], self._memory.watermarks[GPU]
            # Some free ones are left alone: what runs grows into them.
            room = pool.free_count - round((1 - marks.high) * pool.frame_count)
            fitting = rows[: max(0, room)]
            self._memory.replicas.add(GPU, fitting)
            self._ahead.fulfil(fitting)
            self._ahead.shed(rows[fitting.size :])
            return fitting
        rows = self._ahead.to_read(rows)
        if self._late.too_many:
            self._ahead.shed(rows)
            return NO_ROWS
        spare = self._config.cpu_frames_reserved
        fitting, lacking = self._take_frames(CPU, rows, lambda: Purpose(WHY_AHEAD), spare, in_background=True)
        lane.put_back(lacking)
        return fitting

    def _next_copy(self, rows: Rows, lane: Lane) -> Rows:
        """Swapped sequences have their CPU frames already. Cached blocks get theirs as there is room:
        those that sessions have wait for it, others are let go."""
        blocks = self._memory.blocks
        if lane.urgency is BACKGROUND:
            blocks.unqueue(GPU, rows)
        asked, rows = rows.size, rows[blocks.valid[GPU][rows]]
        taken = blocks.frame[CPU][rows] != NO_FRAME
        begun = blocks.valid[CPU][rows] | (blocks.pins[CPU][rows] > 0)
        ready = blocks.indexed[rows] | blocks.offered[rows]
        swapped: Rows = rows[taken & ~begun & ready]
        # This copy is the one that was offered. A later swap of the same block has a fence of its own.
        blocks.offered[swapped] = False
        if lane.urgency is NEEDED:
            # Whose swap has come to nothing is cache at the most: it waits in the background, if at all.
            return swapped
        cached = rows[~taken & blocks.indexed[rows] & ~blocks.valid[DISK][rows]]
        below = (blocks.frame[CPU] != NO_FRAME) | blocks.valid[DISK]
        cached = cached[self._parent_is(below, cached)]
        cached = cached[~blocks.unwanted[cached]]
        spare = self._config.cpu_frames_reserved
        fitting, lacking = self._take_frames(
            CPU, cached, lambda: Purpose(WHY_COPY), spare, in_background=True
        )
        # The others are spared for their copy no more.
        self._memory.room_was_made |= cached.size < asked
        waiting = blocks.to_disk[lacking] | blocks.undecided[lacking]
        self._memory.blocks_shed[CPU] += int(np.count_nonzero(~waiting))
        lacking = lacking[waiting]
        blocks.queued[GPU][lacking] = True
        lane.put_back(lacking)
        return np.concatenate([swapped, fitting])

    def _next_write(self, rows: Rows, lane: Lane) -> Rows:
        """After its parent, or with it, or while that is being written: the disk stores what was begun first
        before what was begun later, and not the later where the earlier has failed. Blocks whose parent has
        not come so far come again after it."""
        blocks = self._memory.blocks
        blocks.unqueue(CPU, rows)
        rows = rows[blocks.valid[CPU][rows] & (blocks.frame[DISK][rows] == NO_FRAME)]
        rows = rows[blocks.indexed[rows] & ~blocks.unwanted[rows]]
        rows = rows[np.argsort(blocks.depth[rows], kind="stable")]
        ready = self._parent_is(blocks.frame[DISK] != NO_FRAME, rows)
        early, rows = rows[~ready], rows[ready]
        self._wait_for_parents(lane, early)
        # A block is not written at the cost of the one that it hangs on.
        parents = blocks.parent[rows]
        parents = np.unique(parents[parents != NO_ROW])
        blocks.pin(DISK, parents)
        fitting, lacking = self._take_frames(DISK, rows, lambda: Purpose(WHY_WRITE))
        blocks.unpin(DISK, parents)
        if lacking.size:
            self._shed(lacking, for_good=not fitting.size and not blocks.pins[DISK].any())
            counts = (("blocks_taken", float(fitting.size)), ("blocks_shed", float(lacking.size)))
            self._memory.note_admission(lacking, "shed", WHY_SHED, counts)
        return fitting

    def _wait_for_parents(self, lane: Lane, rows: Rows) -> None:
        """Those whose parent is on its way down come again after it."""
        blocks = self._memory.blocks
        for row, parent in zip(rows.tolist(), blocks.parent[rows].tolist(), strict=True):
            # To be wished for is not to be on its way: a parent whose write has failed is not waited for.
            copied_first = blocks.queued[GPU][parent] and blocks.to_disk[parent]
            if blocks.queued[CPU][parent] or blocks.pins[CPU][parent] or copied_first:
                blocks.queued[CPU][row] = True
                lane.add([row])
            elif not blocks.to_disk[parent]:
                # The disk has seen the parent go. What hangs on it is worth nothing there.
                self._shed(np.array([row], np.intp), for_good=True)

    def _shed(self, rows: Rows, *, for_good: bool) -> None:
        """Not written. They are asked for again when the disk is looked after (`writing.py`), unless nothing
        would ever come of it: the disk is full of what they hang on and of others' shares. Then the wish
        ends, as for what the disk evicts."""
        self._memory.blocks_shed[DISK] += rows.size
        if for_good:
            self._memory.blocks.unwish(rows)
        # They don't wait for their way down any more, so a copy from above may take their place.
        self._lanes[COPY, BACKGROUND].resume()

    def _take_frames(
        self,
        tier: Tier,
        rows: Rows,
        purpose: Callable[[], Purpose],
        spare: int = 0,
        *,
        in_background: bool = False,
    ) -> tuple[Rows, Rows]:
        """Target frames for as many of the leading rows, of each tenant, as there is room for, by halves;
        and the other rows."""
        memory = self._memory
        groups = memory.shares.by_tenant(rows) if memory.shares.are_shared else [(NOBODY, rows)]
        fitting, lacking = [NO_ROWS], [NO_ROWS]
        for domain, group in groups:
            count = _most(
                group.size,
                partial(
                    make_room,
                    memory,
                    tier,
                    purpose=purpose,
                    spare=spare,
                    domain=domain,
                    in_background=in_background,
                ),
            )
            memory.replicas.add(tier, group[:count])
            fitting.append(group[:count])
            lacking.append(group[count:])
        return np.concatenate(fitting), np.concatenate(lacking)

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


def _most(count: int, makes_room: Callable[[int], bool]) -> int:
    """For how many of these room can be made, by halves. Each look may go through the whole tier: where there
    is nothing, two of them will do."""
    if not count or makes_room(count):
        return count
    if count == 1 or not makes_room(1):
        return 0
    count //= 2
    while count and not makes_room(count):
        count //= 2
    return count
