"""The tables of all blocks, and what becomes of a block whose references, claims or pins have changed.

Who gets frames is said in `frames.py`, how they are given and taken back in `replicas.py`.
"""

from collections.abc import Callable

import numpy as np

from kvstore.core.blocks import NO_FRAME, NO_ROWS, Blocks, all_of, any_of, without_none
from kvstore.core.config import StoreConfig
from kvstore.core.decisions import Decisions, Lot, no_figures
from kvstore.core.errors import check
from kvstore.core.lacking import Lacking
from kvstore.core.pool import FramePool
from kvstore.core.ports import AdmissionPolicy, EvictionPolicy, Figures
from kvstore.core.prefix import PrefixIndex
from kvstore.core.recency import Recency
from kvstore.core.regret import Regret
from kvstore.core.replicas import Replicas
from kvstore.core.retained import Retained
from kvstore.core.room import Room
from kvstore.core.shares import Shares
from kvstore.core.tree import with_descendants
from kvstore.core.types import CPU, DISK, GPU, Rows, Tier
from kvstore.core.watermarks import WatermarkTable

__all__ = ["Memory"]

BELOW = (CPU, DISK)


class Memory:
    """The block table, the pools of all tiers and the prefix index, kept in step."""

    def __init__(
        self, config: StoreConfig, eviction: EvictionPolicy, admission: AdmissionPolicy | None = None
    ) -> None:
        self.block_tokens = config.block_tokens
        # Of the event that is being handled.
        self.now = 0.0
        sizes = config.frames
        self.blocks = Blocks(sum(sizes))
        self.pools = tuple(FramePool(size) for size in sizes)
        # The tiers below the GPU that there are.
        self._below = tuple(tier for tier in BELOW if sizes[tier])
        self.prefix = PrefixIndex(self.blocks, (GPU, *self._below))
        self.eviction = eviction
        # What is worth a copy further down, of what no session owns. None: nobody is asked.
        self.admission = admission
        eviction.begin(self.blocks.capacity)
        self.shares = Shares(config, self.blocks)
        self.regret = Regret(self.blocks, sizes)
        self.replicas = Replicas(self.blocks, self.pools, self.prefix, eviction, self.shares, self.regret)
        self.lacking = Lacking(self.blocks, self.shares)
        self.room = Room(self.blocks, self.pools, eviction, self.shares)
        self.watermarks = WatermarkTable(config)
        self.decisions = Decisions()
        self.recency = Recency(self.blocks, has_disk=config.disk_frames > 0)
        self.retained = Retained(self.blocks, eviction)
        self.blocks_evicted = [0 for _ in Tier]
        # Blocks that were not brought to a tier, though it was wished for, for want of room or time; of the
        # disk also those that were forgotten before they came there.
        self.blocks_shed = [0 for _ in Tier]
        # Blocks that are to be discarded and are held still, and perhaps others; and as of which of the
        # blocks' changes it was looked whether they are.
        self.unwanted = NO_ROWS
        self._discarded_at = 0
        # Whether the event that is being handled may have left GPU frames behind that others can have.
        self.room_was_made = False

    def release(self, rows: Rows, *, distinct: bool = False) -> None:
        """References in limbo end, heads of chains named before their tails.

        What no sequence refers to stays as cache if it is indexed, and goes if it is not.
        """
        self.blocks.leave_limbo(rows)
        self._leave(rows if distinct else self.blocks.distinct(rows), on_gpu=True)

    def collect(self, rows: Rows) -> None:
        """Draws the consequences for blocks whose references, claims or pins have changed."""
        blocks = self.blocks
        rows = blocks.distinct(rows[blocks.taken[rows]])
        self._leave(rows[np.argsort(blocks.depth[rows], kind="stable")])

    def _leave(self, rows: Rows, *, on_gpu: bool = False) -> None:
        """What nobody needs goes; what is left without a reference was used just now. `on_gpu`: all of these
        are known to have GPU frames."""
        blocks = self.blocks
        for tier in self._below:
            self._leave_below(tier, rows[::-1])
        rows = rows[blocks.refs[rows] == 0]
        if rows.size and not self.room_was_made:
            self.room_was_made = on_gpu or not self._below or self._on_gpu(rows)
        indexed = blocks.indexed[rows]
        cached, private = rows[indexed], rows[~indexed]
        if cached.size:
            if self._below:
                self._leave_unfilled(cached)
            self._touch(cached[::-1])
        if private.size:
            self._end(private)

    def _on_gpu(self, rows: Rows) -> bool:
        return any_of(self.blocks.has_frame(GPU, rows))

    def _leave_below(self, tier: Tier, rows: Rows) -> None:
        """Tails first, copies go that are not valid, and unclaimed ones of blocks that can't be found.

        Of a claimed block that can't be found the copy on disk will do: one that has passed through the
        CPU tier is no cache, and nobody would ever evict it.
        """
        blocks = self.blocks
        rows = rows[blocks.frame[tier][rows] != NO_FRAME]
        if rows.size:
            indexed, valid = blocks.indexed[rows], blocks.valid[tier][rows]
            useless = ~(indexed & valid) & (blocks.claims[rows] == 0)
            if tier is CPU:
                useless |= ~indexed & valid & blocks.valid[GPU][rows] & blocks.valid[DISK][rows]
            self.replicas.drop(tier, rows[useless & (blocks.pins[tier][rows] == 0)])

    def _leave_unfilled(self, rows: Rows) -> None:
        """Of cached blocks: GPU frames that were to be filled for somebody who is gone."""
        blocks = self.blocks
        rows = rows[blocks.unfilled(rows)]
        if rows.size:
            rows = rows[blocks.pins[GPU][rows] == 0]
            check(blocks.kept_below(rows).all(), "an indexed block has no copy left")
            self.replicas.drop(GPU, rows)

    def _end(self, rows: Rows) -> None:
        """Private blocks without references go; if a swapped sequence claims one, not its last copy."""
        blocks = self.blocks
        on_gpu = blocks.has_frame(GPU, rows)
        if not self._below:
            self.replicas.drop_private(GPU, rows[on_gpu])
            blocks.give_rows(rows)
            return
        unclaimed = blocks.claims[rows] == 0
        needless = unclaimed | ~blocks.valid[GPU][rows] | blocks.kept_below(rows)
        self.replicas.drop_private(GPU, rows[on_gpu & needless & (blocks.pins[GPU][rows] == 0)])
        rows = rows[unclaimed]
        nowhere = ~blocks.has_frame(GPU, rows)
        for tier in self._below:
            nowhere &= ~blocks.has_frame(tier, rows)
        blocks.give_rows(rows[nowhere])

    def _touch(self, rows: Rows) -> None:
        """These were used just now; tails first, so that a child goes before its parent."""
        if not rows.size:
            return
        self.blocks.changes += 1
        if DISK in self._below:
            self.recency.note(rows)
        for tier in (GPU, *self._below):
            valid = self.blocks.valid[tier][rows]
            self.eviction.touch(tier, rows if all_of(valid) else rows[valid])

    def evict(self, tier: Tier, rows: Rows) -> int:
        """Takes cached blocks out of a tier, no row named twice. Where it was the last copy, the block is
        forgotten: returns how many were."""
        blocks = self.blocks
        self.blocks_evicted[tier] += rows.size
        last = rows
        for other in (GPU, *self._below):
            if other is not tier:
                last = last[~blocks.valid[other][last]]
        if tier is DISK:
            # It has seen the block go as the one of least worth: it is not to be written there again.
            blocks.unwish(rows)
        elif DISK in self._below:
            self.blocks_shed[DISK] += int(np.count_nonzero(blocks.to_disk[last]))
        self.eviction.evicted(tier, rows)
        if last.size:
            self._leave_index(last)
        self.replicas.drop(tier, rows)
        self.eviction.forget(tier, rows)
        if last.size:
            self._leave(last[np.argsort(blocks.depth[last], kind="stable")])
        return int(last.size)

    def forget(self, rows: Rows) -> Rows:
        """Takes blocks out of the index, with all that hang on them; copies go unless in use."""
        doomed = with_descendants(self.blocks, rows)
        self.take_out(doomed)
        self.collect(doomed)
        return doomed

    def take_out(self, rows: Rows) -> None:
        """The same of blocks that nothing hangs on; what follows from it is still to be drawn (`collect`)."""
        self._leave_index(rows)
        for tier in Tier:
            self.eviction.forget(tier, rows)

    def note_admission(
        self,
        rows: Rows,
        chosen: str,
        reason: str,
        counts: Figures,
        figures: Callable[[], Figures] = no_figures,
    ) -> None:
        """For who asks why these have a copy further down, or none; of no blocks nothing is noted."""
        if rows.size:
            tenants = self.shares.tenants_of(rows)
            lot = Lot(kind="admit", chosen=chosen, reason=reason, tenants=tenants, counts=counts)
            self.decisions.note_lot(self.now, lot, self.blocks.owner[rows], figures)

    def _leave_index(self, rows: Rows) -> None:
        if rows.size and not self.room_was_made:
            # What hangs on a block no more holds it no longer.
            self.room_was_made = self._on_gpu(without_none(self.blocks.parent[rows]))
        if self.retained.has_any:
            self.retained.drop(rows)
        self.prefix.remove(rows)

    def discard(self, rows: Rows) -> None:
        """Takes out of every tier what of these indexed blocks nobody uses. What is used, moves or is hung on
        still goes when that is over (`discard_again`), unless somebody wants it by then."""
        self.blocks.unwanted[rows] = True
        self.blocks.unwish(rows)
        self._discard(rows)

    def discard_again(self) -> None:
        """Of blocks that were to be discarded and were held, those that nothing holds any more go."""
        blocks = self.blocks
        if self._discarded_at != blocks.changes:
            rows, self.unwanted = self.unwanted, NO_ROWS
            self._discard(rows[blocks.unwanted[rows]])
            self._discarded_at = blocks.changes

    def _discard(self, rows: Rows) -> None:
        """Tails first. What goes from one tier may be the last that hung on a block in another."""
        blocks, some_went = self.blocks, True
        rows = rows[np.argsort(-blocks.depth[rows], kind="stable")]
        while some_went and rows.size:
            some_went = False
            for tier in Tier:
                gone = self.room.going.removable(tier, rows[blocks.indexed[rows]])
                if gone.size:
                    some_went = True
                    self.room_was_made |= tier is GPU
                    self.evict(tier, gone)
            rows = rows[blocks.unwanted[rows]]
        if rows.size:
            self.unwanted = np.union1d(self.unwanted, rows)
