"""Replicas of blocks: taking frames, and giving them back. What may go is said in `room.py`."""

import numpy as np

from kvstore.core.blocks import NO_FRAME, NO_ROW, Blocks, Rows
from kvstore.core.config import StoreConfig
from kvstore.core.errors import check
from kvstore.core.pool import FramePool
from kvstore.core.ports import EvictionPolicy
from kvstore.core.prefix import PrefixIndex, domain_parts
from kvstore.core.room import Room
from kvstore.core.types import BlockKey, DomainId, StoredKey, Tier, WriterId

__all__ = ["Memory"]

_NO_ROWS = np.empty(0, np.int32)


class Memory:
    """The block table, the pools of all tiers and the prefix index, kept in step."""

    def __init__(self, config: StoreConfig, eviction: EvictionPolicy) -> None:
        sizes = (config.gpu_frames, config.cpu_frames, config.disk_frames)
        self.blocks = Blocks(sum(sizes))
        self.pools = tuple(FramePool(size) for size in sizes)
        self.prefix = PrefixIndex(self.blocks)
        self.eviction = eviction
        self.room = Room(self.blocks, self.pools, self.prefix, eviction)
        self.blocks_evicted = [0 for _ in Tier]
        # Whether copies from the GPU down find no room, so that waiting for them is of no use.
        self.copies_stalled = False
        # Blocks that have left the disk tier, to be told to the disk with the next effects.
        self.deleted: list[StoredKey] = []

    # ------------------------------------------------------------------ taking frames

    def grant(self, held: Rows, fresh: int, spare: int = 0) -> Rows | None:
        """Holds the blocks `held` on the GPU and gives `fresh` new ones, all or nothing.

        Held blocks without a GPU frame get one, to be filled. `spare` more frames must be left
        over for those who stand ahead in the queue. Returns the new blocks, or None.
        """
        blocks = self.blocks
        blocks.hold(held)
        lacking = np.unique(held[blocks.frame[Tier.GPU, held] == NO_FRAME])
        if not self.make_room(Tier.GPU, lacking.size + fresh, spare):
            blocks.release(held)
            return None
        self.eviction.forget(Tier.GPU, held.tolist())
        self.add_replicas(Tier.GPU, lacking)
        new = blocks.take_rows(fresh)
        self.add_replicas(Tier.GPU, new)
        blocks.valid[Tier.GPU, new] = True
        blocks.hold(new)
        return new

    def make_room(self, tier: Tier, count: int, spare: int = 0, *, in_background: bool = False) -> bool:
        """Sees to `count` free frames, with `spare` more that are free or could be. All or nothing.

        Blocks that wait for their copy down are spared where others suffice, and by what is done in
        the background always. On the GPU those of sessions are waited for, as long as copies go on.
        """
        free = self.pools[tier].free_count
        if free >= count + spare:
            return True
        wanted = count + spare - free
        queued = self.blocks.queued[tier]
        victims = self.room.victims(tier, wanted, spared=queued)
        if len(victims) < wanted and not in_background:
            awaited = queued & self.blocks.to_disk
            if tier is not Tier.GPU or self.copies_stalled:
                awaited = np.zeros_like(queued)
            victims = self.room.victims(tier, wanted, spared=awaited)
            stuck = self.room.stuck(awaited) if tier is Tier.GPU and len(victims) < wanted else _NO_ROWS
            if self.forget(stuck).size:
                return self.make_room(tier, count, spare)
        if len(victims) < wanted:
            return False
        if count > free:
            self.evict(tier, np.array(victims[: count - free], np.int32))
        return True

    def add_replicas(self, tier: Tier, rows: Rows) -> None:
        """Gives each block a frame in the tier, still to be filled. There is room."""
        blocks = self.blocks
        blocks.frame[tier, rows] = self.pools[tier].take(rows)
        self.prefix.count_children(tier, rows[blocks.indexed[rows]], 1)

    def drop_replicas(self, tier: Tier, rows: Rows) -> None:
        """Gives the frames of these blocks in the tier back."""
        blocks = self.blocks
        check(not blocks.pins[tier, rows].any(), "a pinned frame was given back")
        if tier is Tier.DISK:
            stored = rows[blocks.valid[tier, rows]].tolist()
            self.deleted += [self.stored_key(row) for row in stored if not self._is_stored_again(row)]
        self.pools[tier].give(blocks.frame[tier, rows])
        blocks.frame[tier, rows] = NO_FRAME
        blocks.valid[tier, rows] = False
        self.prefix.count_children(tier, rows[blocks.indexed[rows]], -1)
        self.eviction.forget(tier, rows.tolist())

    # ----------------------------------------------------------------- giving them back

    def collect(self, rows: Rows) -> None:
        """Draws the consequences for blocks whose references or pins have changed.

        What no sequence refers to stays as cache if it is indexed, and goes if it is not.
        """
        blocks = self.blocks
        rows = np.unique(rows[blocks.taken[rows]])
        used, claimed, indexed = blocks.in_use(rows), blocks.claims[rows] > 0, blocks.indexed[rows]
        idle = (blocks.frame[Tier.GPU, rows] != NO_FRAME) & (blocks.pins[Tier.GPU, rows] == 0) & ~used
        below = blocks.valid[Tier.CPU, rows] | blocks.valid[Tier.DISK, rows]
        unfilled = ~blocks.valid[Tier.GPU, rows]
        self.drop_replicas(Tier.GPU, rows[idle & (unfilled | (~indexed & (~claimed | below)))])
        for tier in (Tier.CPU, Tier.DISK):
            idle = (blocks.frame[tier, rows] != NO_FRAME) & (blocks.pins[tier, rows] == 0)
            useless = ~indexed | ~blocks.valid[tier, rows]
            self.drop_replicas(tier, rows[idle & useless & ~claimed])
        self._touch(rows[indexed & ~used])
        nowhere = (blocks.frame[:, rows] == NO_FRAME).all(axis=0) & ~used & ~claimed
        check(not blocks.indexed[rows[nowhere]].any(), "an indexed block has no copy left")
        blocks.give_rows(rows[nowhere])

    def _touch(self, rows: Rows) -> None:
        """Released blocks were used just now: tails first, so that a child goes before its parent."""
        rows = rows[np.argsort(-self.blocks.depth[rows], kind="stable")]
        for tier in Tier:
            self.eviction.touch(tier, rows[self.blocks.valid[tier, rows]].tolist())

    def evict(self, tier: Tier, rows: Rows) -> None:
        """Takes cached blocks out of a tier. Where it was the last copy, the block is forgotten."""
        self.blocks_evicted[tier] += rows.size
        last = rows[self.blocks.valid[:, rows].sum(axis=0) == 1]
        self.prefix.remove(last)
        self.drop_replicas(tier, rows)
        self.collect(last)

    def forget(self, rows: Rows) -> Rows:
        """Takes blocks out of the index, with all that hang on them; copies go unless in use."""
        doomed = self.prefix.with_descendants(rows)
        self.prefix.remove(doomed)
        for tier in Tier:
            self.eviction.forget(tier, doomed.tolist())
        self.collect(doomed)
        return doomed

    def discard(self, rows: Rows) -> None:
        """Takes out of every tier what of these indexed blocks nobody uses, tails first. What a
        transfer still moves goes when that has ended (`discard_again`)."""
        self.blocks.unwanted[rows] = True
        rows = rows[np.argsort(-self.blocks.depth[rows], kind="stable")]
        for tier in Tier:
            self.evict(tier, np.array(self.room.removable(tier, rows[self.blocks.indexed[rows]]), np.int32))

    def discard_again(self, rows: Rows) -> None:
        """Of blocks whose transfer has ended, those that were to be discarded meanwhile."""
        unwanted = self.prefix.with_ancestors(rows[self.blocks.unwanted[rows]])
        if unwanted.size:
            self.discard(unwanted[self.blocks.unwanted[unwanted]])

    # ------------------------------------------------------------------------ questions

    def best_tier(self, rows: Rows) -> Rows:
        """The uppermost tier in which each block is valid. Each is in one, if it is indexed."""
        best: Rows = self.blocks.valid[:, rows].argmax(axis=0).astype(np.int32)
        return best

    def _is_stored_again(self, row: int) -> bool:
        """Whether the bytes on disk under the block's key are those of a later block."""
        blocks = self.blocks
        known = self.prefix.find(DomainId(int(blocks.domain[row])), BlockKey(blocks.key[row]))
        return known is not None and known != row and bool(blocks.frame[Tier.DISK, known] != NO_FRAME)

    def stored_key(self, row: int) -> StoredKey:
        """The block as the disk names it."""
        blocks = self.blocks
        namespace, tenant = domain_parts(DomainId(int(blocks.domain[row])))
        parent = int(blocks.parent[row])
        return StoredKey(
            namespace=namespace,
            tenant=tenant,
            key=BlockKey(blocks.key[row]),
            parent=BlockKey(b"" if parent == NO_ROW else blocks.key[parent]),
            writer=WriterId(int(blocks.writer[row])),
        )
