"""Links between neighbouring tiers: what waits to be moved, and what is on its way.

A queue holds rows, not promises: what is to be done for a row is read off its replicas when
its turn comes, and a row that needs nothing any more (freed, evicted, moved by another) is
passed over. So nothing has to be taken out of a queue. What an engine asked for goes before
what the store does in the background; each link has few transfers under way, of bounded size.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvstore.core.blocks import NO_FRAME, NO_ROW, Rows
from kvstore.core.config import StoreConfig
from kvstore.core.effects import Transfer
from kvstore.core.errors import check
from kvstore.core.memory import Memory
from kvstore.core.types import CPU, DISK, GPU, Tier, TransferId

__all__ = ["COPY", "LINKS", "LOAD", "READ", "WRITE", "Link", "Links", "Moved"]

Link = tuple[Tier, Tier]
COPY: Link = (GPU, CPU)
LOAD: Link = (CPU, GPU)
READ: Link = (DISK, CPU)
WRITE: Link = (CPU, DISK)
LINKS = (LOAD, READ, COPY, WRITE)
# Ways up first: a waiting engine's load is not held up by room that a way down takes. LOAD passes
# on to READ what the CPU tier does not have, and READ back to LOAD what it has meanwhile.
ORDER = (LOAD, READ, LOAD, COPY, WRITE)


@dataclass(slots=True)
class _Queue:
    """Rows that wait for a link, and the transfers that it has under way."""

    asked: deque[int] = field(default_factory=deque)
    background: deque[int] = field(default_factory=deque)
    under_way: int = 0
    # Rows were put back: nothing is tried again before something has changed.
    stalled: bool = False

    def take(self, count: int) -> list[int]:
        """The next rows, each once."""
        rows: dict[int, None] = {}
        for queue in (self.asked, self.background):
            while queue and len(rows) < count:
                rows[queue.popleft()] = None
        return list(rows)

    def put_back(self, rows: Rows, *, asked: bool) -> None:
        """These find no room now."""
        if rows.size:
            (self.asked if asked else self.background).extendleft(reversed(rows.tolist()))
            self.stalled = True


@dataclass(frozen=True, slots=True)
class Moved:
    """A transfer that has ended: which of its blocks are good in the target tier now."""

    link: Link
    good: Rows
    bad: Rows


class Links:
    """All queues, and the transfers under way by id."""

    def __init__(self, config: StoreConfig, memory: Memory) -> None:
        self._config = config
        self._memory = memory
        self._queues = {link: _Queue() for link in LINKS}
        self._under_way: dict[TransferId, tuple[Link, Rows]] = {}
        self._last_id = 0
        self.blocks_moved_in = [0 for _ in Tier]
        self.blocks_failed = [0 for _ in Tier]

    def ask(self, link: Link, rows: Iterable[int]) -> None:
        """An engine waits for these blocks."""
        self._queues[link].asked.extend(rows)
        self._queues[link].stalled = False

    def ask_down(self, link: Link, rows: Rows) -> None:
        """Cached blocks are to have a copy one tier further down, when the link has nothing better to do."""
        (source, target), blocks = link, self._memory.blocks
        lacking = (blocks.frame[target][rows] == NO_FRAME) & ~blocks.queued[source][rows]
        # Sequences that share blocks may end together: each is asked for once.
        rows = blocks.distinct(rows[lacking & ~blocks.unwanted[rows]])
        blocks.queued[source][rows] = True
        self._queues[link].background.extend(rows.tolist())

    @property
    def under_way(self) -> dict[TransferId, tuple[Link, Rows]]:
        return self._under_way

    # ------------------------------------------------------------------------ starting

    def start(self) -> list[Transfer]:
        """Starts what the links have room for."""
        started: list[Transfer] = []
        for link in ORDER:
            queue = self._queues[link]
            # Each row that waits is looked at once at the most.
            left = len(queue.asked) + len(queue.background)
            if not left:
                continue
            # Writes go one at a time: a block is written with or after its parent.
            most = 1 if link == WRITE else self._config.transfers_per_link_max
            while queue.under_way < most and left > 0 and not queue.stalled:
                left -= self._config.transfer_blocks_max
                rows = self._next(link, queue)
                if rows.size:
                    started.append(self._begin(link, rows))
        self._memory.copies_stalled = self._queues[COPY].stalled
        return started

    def resume(self) -> None:
        """Something has moved, or time has passed: room that was lacking may be there."""
        for queue in self._queues.values():
            queue.stalled = False

    def _next(self, link: Link, queue: _Queue) -> Rows:
        """Rows of the link's next transfer, their target frames taken; perhaps none."""
        rows = np.array(queue.take(self._config.transfer_blocks_max), np.intp)
        if link == LOAD:
            return self._next_load(rows)
        if link == READ:
            return self._next_read(rows, queue)
        if link == COPY:
            return self._next_copy(rows, queue)
        return self._next_write(rows, queue)

    def _next_load(self, rows: Rows) -> Rows:
        rows = rows[self._wanted(rows)]
        at_hand = self._memory.blocks.valid[CPU][rows]
        self.ask(READ, rows[~at_hand].tolist())
        ready: Rows = rows[at_hand]
        return ready

    def _next_read(self, rows: Rows, queue: _Queue) -> Rows:
        """Reads pass through the CPU tier, and may use the frames kept for that passage."""
        blocks = self._memory.blocks
        rows = rows[self._wanted(rows)]
        self.ask(LOAD, rows[blocks.valid[CPU][rows]].tolist())
        rows = rows[(blocks.frame[CPU][rows] == NO_FRAME) & blocks.valid[DISK][rows]]
        fitting = self._take_frames(CPU, rows)
        queue.put_back(rows[fitting.size :], asked=True)
        return fitting

    def _wanted(self, rows: Rows) -> NDArray[np.bool_]:
        """Whether a GPU frame waits to be filled and no transfer fills it yet."""
        blocks = self._memory.blocks
        wanted: NDArray[np.bool_] = blocks.unfilled(rows) & (blocks.pins[GPU][rows] == 0)
        return wanted

    def _next_copy(self, rows: Rows, queue: _Queue) -> Rows:
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
        queue.put_back(lacking, asked=False)
        return np.concatenate([swapped, fitting])

    def _next_write(self, rows: Rows, queue: _Queue) -> Rows:
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
                queue.background.append(row)
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

    def _begin(self, link: Link, rows: Rows) -> Transfer:
        source, target = link
        blocks = self._memory.blocks
        blocks.pin(source, rows)
        blocks.pin(target, rows)
        self._last_id += 1
        transfer = TransferId(self._last_id)
        self._under_way[transfer] = (link, rows)
        self._queues[link].under_way += 1
        keyed = DISK in link
        return Transfer(
            id=transfer,
            source=source,
            target=target,
            source_frames=tuple(blocks.frame[source][rows].tolist()),
            target_frames=tuple(blocks.frame[target][rows].tolist()),
            keys=tuple(self._memory.stored_key(row) for row in rows.tolist()) if keyed else (),
        )

    # -------------------------------------------------------------------------- ending

    def end(self, transfer: TransferId, failed: tuple[int, ...]) -> Moved:
        """The one end of a transfer: good copies become valid, frames of bad ones go back."""
        check(transfer in self._under_way, f"transfer {transfer} ended twice, or never began")
        (source, target), rows = self._under_way.pop(transfer)
        self._queues[source, target].under_way -= 1
        self.resume()
        blocks = self._memory.blocks
        blocks.unpin(source, rows)
        blocks.unpin(target, rows)
        is_good = np.ones(rows.size, np.bool_)
        is_good[list(failed)] = False
        good, bad = rows[is_good], rows[~is_good]
        blocks.valid[target][good] = True
        if self._memory.prefix.changes is not None:
            self._memory.prefix.changes.stored(target, good[blocks.indexed[good]])
        self.blocks_moved_in[target] += good.size
        self.blocks_failed[target] += bad.size
        if target is DISK:
            # What can't be written is not tried again before it is asked for again.
            blocks.to_disk[bad] = False
        # A GPU frame that could not be filled belongs to its sequences: they decide (swaps.py).
        if target is not GPU:
            self._memory.drop_replicas(target, bad)
            self._memory.eviction.touch(target, good[blocks.indexed[good]][::-1])
        return Moved((source, target), good, bad)
