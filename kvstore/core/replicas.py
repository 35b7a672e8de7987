"""Replicas of blocks: the frames that a tier gives them and takes back, and where a block is.

Why a block gets or loses one is decided in `memory.py`; here the pools, the counts of the index and the
order of eviction are kept in step.
"""

import numpy as np

from kvstore.core.blocks import NO_FRAME, NO_OWNER, NO_ROW, Blocks, any_of
from kvstore.core.errors import check
from kvstore.core.pool import FramePool, Frames
from kvstore.core.ports import EvictionPolicy
from kvstore.core.prefix import PrefixIndex
from kvstore.core.regret import Regret
from kvstore.core.shares import Shares
from kvstore.core.types import DISK, BlockKey, DomainId, Rows, StoredKey, Tier, WriterId, domain_parts

__all__ = ["Replicas"]


class Replicas:
    """Of all blocks, in all tiers."""

    def __init__(
        self,
        blocks: Blocks,
        pools: tuple[FramePool, ...],
        prefix: PrefixIndex,
        eviction: EvictionPolicy,
        shares: Shares,
        regret: Regret,
    ) -> None:
        self._blocks = blocks
        self._pools = pools
        self._prefix = prefix
        self._eviction = eviction
        self._shares = shares
        self._regret = regret
        # Blocks that have left the disk tier, to be told to the disk with the next effects.
        self.deleted: list[StoredKey] = []

    def add(self, tier: Tier, rows: Rows) -> None:
        """Gives each block a frame in the tier, still to be filled. There is room."""
        blocks = self._blocks
        blocks.frame[tier][rows] = self._pools[tier].take(rows)
        if self._shares.are_shared:
            self._shares.count(tier, rows, 1)
        indexed = rows[blocks.indexed[rows]]
        self._prefix.count_children(tier, indexed, 1)
        self._regret.return_to(tier, indexed)

    def drop(self, tier: Tier, rows: Rows) -> None:
        """Gives the frames of these blocks in the tier back."""
        blocks = self._blocks
        indexed = rows[blocks.indexed[rows]]
        if indexed.size:
            if self._prefix.changes is not None:
                self._prefix.changes.removed(tier, indexed[blocks.valid[tier][indexed]])
            self._prefix.count_children(tier, indexed, -1)
            self._eviction.forget(tier, indexed)
        self.drop_private(tier, rows)

    def drop_private(self, tier: Tier, rows: Rows) -> None:
        """The same for blocks that can't be found."""
        if not rows.size:
            return
        blocks = self._blocks
        check(not np.count_nonzero(blocks.pins[tier][rows]), "a pinned frame was given back")
        blocks.changes += 1
        if tier is DISK:
            self.delete(rows[blocks.valid[tier][rows]])
        self._pools[tier].give(blocks.frame[tier][rows].astype(np.intp))
        if self._shares.are_shared:
            self._shares.count(tier, rows, -1)
        blocks.frame[tier][rows] = NO_FRAME
        blocks.valid[tier][rows] = False

    def delete(self, rows: Rows) -> None:
        """The disk is to be told that it may forget these blocks, which it holds."""
        gone = [row for row in rows.tolist() if not self._is_stored_again(row)]
        self.deleted += self.stored_keys(np.array(gone, np.intp))

    def withhold(self, tier: Tier, rows: Rows) -> Frames:
        """The blocks lose their frames in the tier, which were still to be filled; nobody gets them."""
        blocks = self._blocks
        check(not blocks.valid[tier][rows].any(), "a frame with content was withheld")
        blocks.changes += 1
        self._prefix.count_children(tier, rows[blocks.indexed[rows]], -1)
        frames: Frames = blocks.frame[tier][rows].astype(np.intp)
        self._pools[tier].withhold(frames)
        if self._shares.are_shared:
            self._shares.count(tier, rows, -1)
        blocks.frame[tier][rows] = NO_FRAME
        return frames

    def best_tier(self, rows: Rows) -> Rows:
        """The uppermost tier in which each block is valid. Each is in one, if it is indexed."""
        on_gpu, on_cpu, _ = self._blocks.valid
        below = ~on_gpu[rows]
        best: Rows = below.astype(np.intp)
        if any_of(below):
            best[below] += ~on_cpu[rows[below]]
        return best

    def _is_stored_again(self, row: int) -> bool:
        """Whether the bytes on disk under the block's key are those of a later block."""
        blocks = self._blocks
        known = self._prefix.find(DomainId(int(blocks.domain[row])), blocks.key[row])
        return known is not None and known != row and bool(blocks.frame[DISK][known] != NO_FRAME)

    def stored_keys(self, rows: Rows) -> list[StoredKey]:
        """These blocks as the disk names them."""
        blocks, names = self._blocks, self._blocks.key
        # A lone sequence's number means nothing to a later run.
        owners = np.maximum(blocks.owner[rows], NO_OWNER).tolist()
        parents, writers = blocks.parent[rows].tolist(), blocks.writer[rows].tolist()
        parts = [domain_parts(DomainId(domain)) for domain in blocks.domain[rows].tolist()]
        return [
            StoredKey(
                namespace=namespace,
                tenant=tenant,
                key=names[row],
                parent=BlockKey(b"") if parent == NO_ROW else names[parent],
                writer=WriterId(writer),
                owner=owner,
            )
            for row, (namespace, tenant), parent, writer, owner in zip(
                rows.tolist(), parts, parents, writers, owners, strict=True
            )
        ]
