"""What goes when room is short: who is looked for, and who is spared. Who may go at all is said in
`going.py`.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from kvstore.core.blocks import NO_FRAME, NO_ROWS, Blocks
from kvstore.core.going import Going
from kvstore.core.lacking import Search
from kvstore.core.pool import FramePool
from kvstore.core.ports import EvictionPolicy, RowSource
from kvstore.core.shares import NOBODY, Allowance, Shares
from kvstore.core.tree import with_ancestors
from kvstore.core.types import CPU, DISK, GPU, DomainId, Rows, Tier

__all__ = ["Room"]

# Looked at beside twice what is wanted, before all candidates are.
FEW = 8


class Room:
    """Looks, and changes nothing."""

    def __init__(
        self, blocks: Blocks, pools: tuple[FramePool, ...], eviction: EvictionPolicy, shares: Shares
    ) -> None:
        self._blocks = blocks
        self._is_alone = not any(pool.frame_count for pool in pools[CPU:])
        self.going = Going(blocks, is_alone=self._is_alone)
        self._pools = pools
        self._eviction = eviction
        self._shares = shares
        # Places of tenants whose copies from the GPU down find no room: to wait for them is of no use.
        self.copies_stalled: frozenset[int] = frozenset()

    def find(self, search: Search) -> Rows:
        """What may go for it, or all that may, if that is too little.

        Blocks that are wanted on disk and have no copy below are spared where others suffice; so are those
        that wait for their copy down, and by what is done in the background always. On the GPU those of
        sessions are waited for, as long as copies go on.
        """
        tier, wanted = search.tier, search.wanted
        queued = self._blocks.queued[tier]
        find = partial(self.victims, tier, wanted, domain=search.domain, taken=search.taken)
        victims = find(spared=None if tier is DISK or self._is_alone else self.uncopied)
        if len(victims) < wanted and tier is not DISK:
            victims = find(spared=lambda rows: queued[rows])
        if len(victims) < wanted and not search.in_background:
            awaited = self._awaited() if tier is GPU else None
            spared = None if awaited is None else lambda rows: awaited[rows]
            victims = find(spared=spared)
            if len(victims) < wanted and self._shares.are_shared and tier is not DISK and not search.in_share:
                victims = find(domain=NOBODY, spared=spared)
        return victims

    def victims(
        self,
        tier: Tier,
        count: int,
        *,
        spared: Callable[[Rows], NDArray[np.bool_]] | None,
        domain: DomainId = NOBODY,
        taken: int = 0,
    ) -> Rows:
        """So many blocks of least worth that may go, but not the spared; fewer if there are not so many.

        For one tenant's `domain`, the first `taken` of them, which are to go, come first from whom they
        should, and none from another's own share. The others only have to be there.
        """

        def removable(rows: Rows) -> Rows:
            return self.going.removable(tier, rows if spared is None else rows[~spared(rows)])

        def first_removable(rows: Rows) -> Rows:
            if 2 * (few := 2 * count + FEW) < rows.size:
                head = rows[:few] if spared is None else rows[:few][~spared(rows[:few])]
                if (found := self.going.first_few(tier, rows, head, count)).size:
                    return found
            return self.going.removable(tier, rows if spared is None else rows[~spared(rows)], count)

        shares = self._shares
        if not shares.are_shared or domain == NOBODY:
            return self._eviction.victims(tier, count, first_removable)
        victims = NO_ROWS
        for allowance in shares.allowances(tier, domain, count):
            if victims.size < count and allowance.any():
                allowed = partial(self._allowed, removable, allowance)
                more = self._eviction.victims(tier, count, allowed)
                # Some of them may be there already, of the same tenant and in the same order.
                victims = self._blocks.distinct(np.concatenate([victims, more]))[:count]
        if taken <= victims.size < count:
            anybodys = self._eviction.victims(tier, count, first_removable)
            victims = np.concatenate([victims[:taken], anybodys])[: max(victims.size, anybodys.size)]
        return victims

    def _allowed(self, removable: RowSource, allowance: Allowance, rows: Rows) -> Rows:
        """One tenant's blocks never hang on another's, so that one can be looked at without the other."""
        rows = rows[allowance[self._shares.places(rows)] > 0]
        return self._shares.cut(removable(rows), allowance)

    def uncopied(self, rows: Rows) -> NDArray[np.bool_]:
        """Whether each block of the GPU or CPU tier waits for its copy down, or is wanted on disk and is
        not there."""
        blocks = self._blocks
        waiting: NDArray[np.bool_] = blocks.queued[GPU][rows] | blocks.queued[CPU][rows]
        return waiting | (blocks.to_disk[rows] & ~blocks.valid[DISK][rows])

    def _awaited(self) -> NDArray[np.bool_] | None:
        """Blocks of the GPU that sessions have and that wait for a copy, of tenants whose copies go on."""
        if self.copies_stalled and not self._shares.are_shared:
            return None
        wanted = self._blocks.to_disk | self._blocks.undecided
        awaited: NDArray[np.bool_] = self._blocks.queued[GPU] & wanted
        if self.copies_stalled:
            rows = np.flatnonzero(awaited)
            awaited[rows[np.isin(self._shares.places(rows), list(self.copies_stalled))]] = False
        return awaited

    def stuck(self, tier: Tier) -> Rows:
        """Idle blocks whose only copy is in this tier, the GPU or the CPU tier, while others elsewhere hang
        on them, so that they can't leave by themselves: their own copy down has failed, or waits for frames
        that such blocks hold. Not those that such hang on as are in use, move, or are waited for."""
        blocks, rows = self._blocks, self._pools[tier].owned()
        may_go, last = self.going.may_go(tier, rows)
        if self.going.end_together(tier, rows, may_go & last):
            return NO_ROWS
        left = np.setdiff1d(rows[may_go & last], self.going.removable(tier, rows))
        if not left.size:
            return left
        busy = (blocks.refs > 0) | (blocks.claims > 0)
        for pins in blocks.pins:
            busy |= pins > 0
        awaited = self._awaited() if tier is GPU else None
        if awaited is not None:
            busy |= awaited
        needed = with_ancestors(self._blocks, np.flatnonzero(busy & blocks.indexed))
        return np.setdiff1d(left, needed)

    def held_on_gpu(self) -> int:
        """GPU frames that are not free, and can't be made so, when all that is in flight has ended.

        Those of blocks that sequences hold; and of cached blocks with no copy below which such a
        block hangs on. (A sequence holds its own blocks' parents, but another's may have been
        published under the same key first.)
        """
        blocks = self._blocks
        rows = self._pools[GPU].owned()
        held = rows[blocks.held(rows)]
        claimed = np.flatnonzero(blocks.claims)
        above = with_ancestors(self._blocks, np.concatenate([held, claimed]))
        # A copy that is under way counts: if it fails, its sequence gives the block up.
        below = blocks.has_frame(CPU, above) | blocks.valid[DISK][above]
        is_held = np.zeros(blocks.capacity, np.bool_)
        is_held[held] = True
        is_held[above[~below & blocks.indexed[above]]] = True
        return int(np.count_nonzero(is_held & (blocks.frame[GPU] != NO_FRAME)))
