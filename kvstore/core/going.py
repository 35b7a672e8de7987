"""Which of given blocks may leave a tier, one after the other, and in which order.

The rules that hold here:
 * A frame that an engine may still read or write (`Blocks.in_use`) or that a transfer pins
   does not move or go.
 * The last copy of a block goes only when nobody refers to the block and nothing hangs on it.
 * A swapped sequence's claim is held by a copy in the CPU or disk tier.
 * From the disk a block goes after its children there, so that it is prefix-closed by itself.
   From the tiers above, too, but where only that would help, one with a copy below goes before.
"""

import numpy as np
from numpy.typing import NDArray

from kvstore.core.blocks import NO_ROW, NO_ROWS, Blocks, any_of, none_of
from kvstore.core.types import CPU, DISK, GPU, Rows, Tier

__all__ = ["Going"]


class Going:
    """Looks, and changes nothing."""

    def __init__(self, blocks: Blocks, *, is_alone: bool) -> None:
        """`is_alone`: there is the GPU tier only, so that no block has a copy elsewhere, and none moves."""
        self._blocks = blocks
        self._is_alone = is_alone
        # By row: its place among those that are looked at; else, of an earlier look.
        self._looked_at = np.zeros(blocks.capacity, np.int32)

    def removable(self, tier: Tier, candidates: Rows, count: int | None = None) -> Rows:
        """Of the candidates those that may leave the tier one after the other: in their order, but
        a parent that is named before its children right after the last of these. In the end come
        those whose children stay, if they have a copy below. Where no more than `count` are wanted, those
        behind them may be left out."""
        may_go, last = self.may_go(tier, candidates)
        rows, last = candidates[may_go], last[may_go]
        above = self._find_parents(rows)
        if self._leave_in_order(tier, rows, last, above):
            return rows
        return self._leaving(tier, rows, last, above, rows.size if count is None else count)

    def first_few(self, tier: Tier, candidates: Rows, head: Rows, count: int) -> Rows:
        """The same for `count` of them, where a look at the `head` of the candidates tells: else none. It
        does if none has its parent behind the head, which might have to go before the next, and none goes
        before another that stands before it: there they would, where all can go as they stand."""
        may_go, last = self.may_go(tier, head)
        rows, last = head[may_go], last[may_go]
        if rows.size < count:
            return NO_ROWS
        # What stands before the first leaf goes after it, if at all.
        begin = int(self._are_leaves(tier, rows, last).argmax())
        first = rows[begin : begin + count]
        if first.size == count and self._go_as_they_stand(tier, candidates, first, last[begin:][:count]):
            return first
        places = np.array(
            self._one_by_one(tier, rows, last, self._find_parents(rows), count)[:count], np.intp
        )
        if places.size < count:
            return NO_ROWS
        found = rows[places]
        if count == 1:
            return found
        parents = self._blocks.parent[found[:-1]]
        self._looked_at[candidates] = np.arange(candidates.size)
        above = np.minimum(self._looked_at[parents], candidates.size - 1)
        behind = (candidates[above] == parents) & (above > self._looked_at[head[-1]])
        overtakes = (parents == found[1:]) & (places[1:] > places[:-1] + 1)
        return NO_ROWS if any_of(behind | overtakes) else found

    def _go_as_they_stand(self, tier: Tier, candidates: Rows, rows: Rows, last: NDArray[np.bool_]) -> bool:
        """Whether these go one after the other, each either a leaf or the parent of the one before it, and no
        other candidate goes in between: so it is where chains are left from their tails."""
        blocks, parents = self._blocks, self._blocks.parent[rows[:-1]]
        follows = np.zeros(rows.size, np.bool_)
        np.equal(parents, rows[1:], out=follows[1:])
        stays = blocks.children_in[tier][rows] > follows
        if not self._is_alone:
            ended = follows.copy()
            ended[1:] &= last[:-1]
            stays |= last & (blocks.children[rows] > ended)
        if any_of(stays):
            return False
        elsewhere = parents[~follows[1:]]
        if not elsewhere.size:
            return True
        self._looked_at[candidates] = np.arange(candidates.size)
        above = np.minimum(self._looked_at[elsewhere], candidates.size - 1)
        return none_of(candidates[above] == elsewhere)

    def _leave_in_order(self, tier: Tier, rows: Rows, last: NDArray[np.bool_], above: Rows) -> bool:
        """Whether all can go as they stand, children first: so it is where whole chains were left. `above`:
        where the parent of each stands among them (`_find_parents`)."""
        if any_of(above < np.arange(rows.size)):
            return False
        gone = np.bincount(above, minlength=rows.size + 1)[:-1]
        ended = np.bincount(above[last], minlength=rows.size + 1)[:-1]
        blocks = self._blocks
        stays = (blocks.children_in[tier][rows] > gone) | (last & (blocks.children[rows] > ended))
        return none_of(stays)

    def _leaving(self, tier: Tier, rows: Rows, last: NDArray[np.bool_], above: Rows, count: int) -> Rows:
        """The general case."""
        chosen = np.array(self._one_by_one(tier, rows, last, above, count), np.intp)
        if tier is not DISK and chosen.size < count:
            stays = np.ones(rows.size, np.bool_)
            stays[chosen] = False
            chosen = np.concatenate([chosen, np.flatnonzero(stays & ~last)])
        return rows[chosen]

    def _one_by_one(
        self, tier: Tier, rows: Rows, last: NDArray[np.bool_], above: Rows, count: int
    ) -> list[int]:
        """Places of those that go one after the other, until there are `count`."""
        # Children still in this tier, and anywhere.
        children_here, children = self._blocks.children_in[tier][rows], self._blocks.children[rows]
        # All others go behind the last of their children, or not at all.
        leaves = np.flatnonzero(self._are_leaves(tier, rows, last))[:count]
        # One at a time views are read, and written, sooner than arrays.
        here, anywhere, is_last, parent = children_here.data, children.data, last.data, above.data
        chosen: list[int] = []
        for own in leaves.tolist():
            if len(chosen) >= count:
                break
            place = own
            while not here[place] and not (is_last[place] and anywhere[place]):
                chosen.append(place)
                child, place = place, parent[place]
                if place == rows.size:
                    break
                here[place] -= 1
                anywhere[place] -= is_last[child]
        return chosen

    def _are_leaves(self, tier: Tier, rows: Rows, last: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Of these that may go, those that nothing in the tier hangs on; nor anything elsewhere, where it
        would end them."""
        blocks = self._blocks
        leaves: NDArray[np.bool_] = blocks.children_in[tier][rows] == 0
        if not self._is_alone:
            leaves &= ~(last & (blocks.children[rows] > 0))
        return leaves

    def _find_parents(self, rows: Rows) -> Rows:
        """Where the parent of each stands among these; `rows.size`, where it doesn't."""
        self._looked_at[rows] = np.arange(rows.size)
        parents = self._blocks.parent[rows]
        places: Rows = self._looked_at[parents].astype(np.intp)
        if rows.size:
            places[rows.take(places, mode="clip") != parents] = rows.size
        return places

    def may_go(self, tier: Tier, rows: Rows) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Whether each block could leave the tier, its children aside; and if that ends it."""
        blocks = self._blocks
        if self._is_alone:
            return blocks.valid[GPU][rows] & ~blocks.in_use(rows), np.ones(rows.size, np.bool_)
        used, claimed = blocks.in_use(rows), blocks.claims[rows].astype(np.bool_)
        on_gpu, on_cpu, on_disk = (valid[rows] for valid in blocks.valid)
        may_go = ~blocks.pins[tier][rows].astype(np.bool_)
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

    def end_together(self, tier: Tier, rows: Rows, ends: NDArray[np.bool_]) -> bool:
        """Of these rows, all that have frames in the tier: whether nothing hangs on those that would end but
        others of them. Then they can all go, and to look at them one after the other is of no use."""
        blocks, ending = self._blocks, rows[ends]
        if any_of(blocks.children[ending] > blocks.children_in[tier][ending]):
            return False
        if not ending.size:
            return True
        self._looked_at[ending] = np.arange(ending.size)
        parents = blocks.parent[rows[~ends]]
        above = np.minimum(self._looked_at[parents], ending.size - 1)
        return none_of((ending[above] == parents) & (parents != NO_ROW))
