"""What may go when room is short.

The rules that hold here:
 * A frame that an engine may still read or write (`Blocks.in_use`) or that a transfer pins
   does not move or go.
 * The last copy of a block goes only when nobody refers to the block and nothing hangs on it.
 * A swapped sequence's claim is held by a copy in the CPU or disk tier.
 * From the disk a block goes after its children there, so that it is prefix-closed by itself.
   From the tiers above, too, but where only that would help, one with a copy below goes before.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from kvstore.core.blocks import NO_FRAME, NO_ROW, NO_ROWS, Blocks, none_of
from kvstore.core.lacking import Search
from kvstore.core.pool import FramePool
from kvstore.core.ports import EvictionPolicy, RowSource
from kvstore.core.shares import NOBODY, Allowance, Shares
from kvstore.core.tree import with_ancestors
from kvstore.core.types import CPU, DISK, GPU, BlockRow, DomainId, Rows, Tier

__all__ = ["Room"]

# Looked at beside twice what is wanted, before all candidates are.
FEW = 8


class Room:
    """Looks, and changes nothing."""

    def __init__(
        self, blocks: Blocks, pools: tuple[FramePool, ...], eviction: EvictionPolicy, shares: Shares
    ) -> None:
        self._blocks = blocks
        self._pools = pools
        self._eviction = eviction
        self._shares = shares
        # Places of tenants whose copies from the GPU down find no room: to wait for them is of no use.
        self.copies_stalled: frozenset[int] = frozenset()
        # By row: its place among those that are looked at; else, of an earlier look.
        self._looked_at = np.zeros(blocks.capacity, np.int32)

    def find(self, search: Search) -> Rows:
        """What may go for it, or all that may, if that is too little.

        Blocks that are wanted on disk and have no copy below are spared where others suffice; so are those
        that wait for their copy down, and by what is done in the background always. On the GPU those of
        sessions are waited for, as long as copies go on.
        """
        tier, wanted = search.tier, search.wanted
        queued = self._blocks.queued[tier]
        find = partial(self.victims, tier, wanted, domain=search.domain, taken=search.taken)
        victims = find(spared=None if tier is DISK else self.uncopied)
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
            return self.removable(tier, rows if spared is None else rows[~spared(rows)])

        def first_removable(rows: Rows) -> Rows:
            if 2 * (few := 2 * count + FEW) < rows.size:
                head = rows[:few] if spared is None else rows[:few][~spared(rows[:few])]
                if (found := self._first_few(tier, rows, head, count)).size:
                    return found
            return self.removable(tier, rows if spared is None else rows[~spared(rows)], count)

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
        may_go, last = self._may_go(tier, rows)
        if self._end_together(tier, rows, may_go & last):
            return NO_ROWS
        left = np.setdiff1d(rows[may_go & last], self.removable(tier, rows))
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

    def _end_together(self, tier: Tier, rows: Rows, ends: NDArray[np.bool_]) -> bool:
        """Of these rows, all that have frames in the tier: whether nothing hangs on those that would end but
        others of them. Then they can all go, and to look at them one after the other is of no use."""
        blocks, ending = self._blocks, rows[ends]
        if np.count_nonzero(blocks.children[ending] > blocks.children_in[tier][ending]):
            return False
        if not ending.size:
            return True
        self._looked_at[ending] = np.arange(ending.size)
        parents = blocks.parent[rows[~ends]]
        above = np.minimum(self._looked_at[parents], ending.size - 1)
        return none_of((ending[above] == parents) & (parents != NO_ROW))

    def removable(self, tier: Tier, candidates: Rows, count: int | None = None) -> Rows:
        """Of the candidates those that may leave the tier one after the other: in their order, but
        a parent that is named before its children right after the last of these. In the end come
        those whose children stay, if they have a copy below. Where no more than `count` are wanted, those
        behind them may be left out."""
        may_go, last = self._may_go(tier, candidates)
        rows, last = candidates[may_go], last[may_go]
        if self._leave_in_order(tier, rows, last):
            return rows
        return self._leaving(tier, rows, last, rows.size if count is None else count)

    def _first_few(self, tier: Tier, candidates: Rows, head: Rows, count: int) -> Rows:
        """The same for `count` of them, where a look at the `head` of the candidates tells: else none. It
        does if none has its parent behind the head, which might have to go before the next, and none goes
        before another that stands before it: there they would, where all can go as they stand."""
        may_go, last = self._may_go(tier, head)
        rows = head[may_go]
        first, _ = self._one_by_one(tier, rows, last[may_go], count)
        if len(first) < count:
            return NO_ROWS
        found = np.array(first[:count], np.intp)
        if count == 1:
            return found
        parents = self._blocks.parent[found[:-1]]
        self._looked_at[candidates] = np.arange(candidates.size)
        above = np.minimum(self._looked_at[parents], candidates.size - 1)
        behind = (candidates[above] == parents) & (above > self._looked_at[head[-1]])
        self._looked_at[rows] = np.arange(rows.size)
        places = self._looked_at[found]
        overtakes = (parents == found[1:]) & (places[1:] > places[:-1] + 1)
        return NO_ROWS if np.count_nonzero(behind | overtakes) else found

    def _leave_in_order(self, tier: Tier, rows: Rows, last: NDArray[np.bool_]) -> bool:
        """Whether all can go as they stand, children first: so it is where whole chains were left."""
        blocks, places = self._blocks, np.arange(rows.size)
        self._looked_at[rows] = places
        parents = blocks.parent[rows]
        above = self._looked_at[parents]
        hangs = (parents != NO_ROW) & (above < rows.size)
        hangs[hangs] = rows[above[hangs]] == parents[hangs]
        if np.count_nonzero(above[hangs] < places[hangs]):
            return False
        gone = np.bincount(above[hangs], minlength=rows.size)
        ended = np.bincount(above[hangs & last], minlength=rows.size)
        stays = (blocks.children_in[tier][rows] > gone) | (last & (blocks.children[rows] > ended))
        return none_of(stays)

    def _leaving(self, tier: Tier, rows: Rows, last: NDArray[np.bool_], count: int) -> Rows:
        """The general case."""
        chosen, kept = self._one_by_one(tier, rows, last, count)
        if tier is not DISK and len(chosen) < count:
            is_last = last.tolist()
            chosen += [row for row, own in kept.items() if not is_last[own]]
        return np.array(chosen, np.intp)

    def _one_by_one(
        self, tier: Tier, rows: Rows, last: NDArray[np.bool_], count: int
    ) -> tuple[list[BlockRow], dict[BlockRow, int]]:
        """One goes after the other, until there are `count`; and where the others stand among the rows."""
        blocks, named = self._blocks, rows.tolist()
        # Of those that wait: where their facts stand.
        place = dict(zip(named, range(rows.size), strict=True))
        is_last, parent = last.tolist(), blocks.parent[rows].tolist()
        # Children still in this tier, and anywhere.
        here, anywhere = blocks.children_in[tier][rows].tolist(), blocks.children[rows].tolist()
        chosen: list[BlockRow] = []
        for first in named:
            if len(chosen) >= count:
                break
            row = first
            while row in place:
                own = place[row]
                if here[own] or (is_last[own] and anywhere[own]):
                    break
                del place[row]
                chosen.append(row)
                row = parent[own]
                if row in place:
                    here[place[row]] -= 1
                    anywhere[place[row]] -= is_last[own]
        return chosen, place

    def _may_go(self, tier: Tier, rows: Rows) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Whether each block could leave the tier, its children aside; and if that ends it."""
        blocks = self._blocks
        used, claimed = blocks.in_use(rows), blocks.claims[rows] > 0
        on_gpu, on_cpu, on_disk = (valid[rows] for valid in blocks.valid)
        may_go = blocks.pins[tier][rows] == 0
        if tier is GPU:
            kept = on_cpu | on_disk
            may_go &= on_gpu & ~used
        elif tier is CPU:
            kept = on_disk | (on_gpu & ~claimed)
            loading = blocks.has_frame(GPU, rows) & ~on_gpu
            may_go &= on_cpu & ~loading
        else:
            kept = (on_cpu | on_gpu) & ~claimed
            may_go &= on_disk
        may_go &= kept | (~claimed & ~used)
        return may_go, ~kept

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
