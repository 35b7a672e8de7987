"""What may go when room is short.

The rules that hold here:
 * A frame that an engine may still read or write (`Blocks.in_use`) or that a transfer pins
   does not move or go.
 * The last copy of a block goes only when nobody refers to the block and nothing hangs on it.
 * A swapped sequence's claim is held by a copy in the CPU or disk tier.
 * From the disk a block goes after its children there, so that it is prefix-closed by itself.
   From the tiers above, too, but where only that would help, one with a copy below goes before.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvstore.core.blocks import NO_FRAME, Blocks, Rows
from kvstore.core.pool import FramePool
from kvstore.core.ports import EvictionPolicy
from kvstore.core.prefix import PrefixIndex
from kvstore.core.types import BlockRow, Tier

__all__ = ["Room"]


class Room:
    """Looks, and changes nothing."""

    def __init__(
        self, blocks: Blocks, pools: tuple[FramePool, ...], prefix: PrefixIndex, eviction: EvictionPolicy
    ) -> None:
        self._blocks = blocks
        self._pools = pools
        self._prefix = prefix
        self._eviction = eviction

    def victims(self, tier: Tier, count: int, *, spared: NDArray[np.bool_]) -> list[BlockRow]:
        """So many blocks of least worth that may go, or fewer if there are not so many."""

        def removable(rows: Sequence[BlockRow]) -> list[BlockRow]:
            return self.removable(tier, [row for row in rows if not spared[row]])

        return self._eviction.victims(tier, count, removable)

    def stuck(self, awaited: NDArray[np.bool_]) -> Rows:
        """Idle blocks whose only copy is on the GPU while others, below it, hang on them: their own copy
        down has failed, so they can't leave by themselves. Not those that `awaited` ones hang on."""
        blocks, rows = self._blocks, self._pools[Tier.GPU].owned()
        may_go, last = self._may_go(Tier.GPU, rows)
        left = np.setdiff1d(rows[may_go & last], np.array(self.removable(Tier.GPU, rows), np.int32))
        if not left.size:
            return left
        busy = blocks.in_use(slice(None)) | (blocks.claims > 0) | (blocks.pins > 0).any(axis=0)
        busy |= awaited
        needed = self._prefix.with_ancestors(np.flatnonzero(busy & blocks.indexed).astype(np.int32))
        stuck: Rows = np.setdiff1d(left, needed)
        return stuck

    def removable(self, tier: Tier, candidates: "Sequence[BlockRow] | Rows") -> list[BlockRow]:
        """Of the candidates those that may leave the tier one after the other: in their order, but
        a parent that is named before its children right after the last of these. In the end come
        those whose children stay, if they have a copy below."""
        blocks = self._blocks
        rows = np.array(candidates, np.int32)
        may_go, last = self._may_go(tier, rows)
        rows, last = rows[may_go], last[may_go]
        facts = zip(
            rows.tolist(),
            last.tolist(),
            blocks.parent[rows].tolist(),
            blocks.children_in[tier, rows].tolist(),
            blocks.children[rows].tolist(),
            strict=True,
        )
        # By row: whether it ends here, its parent, children still in this tier and anywhere.
        waiting = {row: [is_last, parent, here, anywhere] for row, is_last, parent, here, anywhere in facts}
        chosen: list[BlockRow] = []
        for row in rows.tolist():
            while row in waiting:
                is_last, parent, here, anywhere = waiting[row]
                if here or (is_last and anywhere):
                    break
                del waiting[row]
                chosen.append(row)
                if parent not in waiting:
                    break
                waiting[parent][2] -= 1
                waiting[parent][3] -= is_last
                row = parent
        if tier is not Tier.DISK:
            chosen += [row for row, (is_last, *_) in waiting.items() if not is_last]
        return chosen

    def _may_go(self, tier: Tier, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """Whether each block could leave the tier, its children aside; and if that ends it."""
        blocks = self._blocks
        used, claimed = blocks.in_use(rows), blocks.claims[rows] > 0
        valid = blocks.valid[:, rows]
        may_go = valid[tier] & (blocks.pins[tier, rows] == 0)
        if tier is Tier.GPU:
            kept = valid[Tier.CPU] | valid[Tier.DISK]
            may_go &= ~used
        elif tier is Tier.CPU:
            kept = valid[Tier.DISK] | (valid[Tier.GPU] & ~claimed)
            loading = (blocks.frame[Tier.GPU, rows] != NO_FRAME) & ~valid[Tier.GPU]
            may_go &= ~loading
        else:
            kept = (valid[Tier.CPU] | valid[Tier.GPU]) & ~claimed
        may_go &= kept | (~claimed & ~used)
        return may_go, ~kept

    def held_on_gpu(self) -> int:
        """GPU frames that are not free, and can't be made so, when all that is in flight has ended.

        Those of blocks that sequences hold; and of cached blocks with no copy below which such a
        block hangs on. (A sequence holds its own blocks' parents, but another's may have been
        published under the same key first.)
        """
        blocks = self._blocks
        rows = self._pools[Tier.GPU].owned()
        live = rows[blocks.live[rows] > 0]
        claimed = np.flatnonzero(blocks.claims).astype(np.int32)
        above = self._prefix.with_ancestors(np.concatenate([live, claimed]))
        below = blocks.valid[Tier.CPU, above] | blocks.valid[Tier.DISK, above]
        held = np.union1d(live, above[~below & blocks.indexed[above]])
        return int((blocks.frame[Tier.GPU, held] != NO_FRAME).sum())
