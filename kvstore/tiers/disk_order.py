"""The order in which a restart tells of the blocks on disk: parents first, least recent chains first."""

import numpy as np
from numpy.typing import NDArray

from kvstore.core.stored import NO_PLACE, StoredBlocks
from kvstore.tiers.disk_index import FoundBlocks, Places

__all__ = ["keys_in_order", "most_recent"]

MISSING = -2
# Half of those that wait find a place in each.
TABLES_MAX = 16
# An odd number whose bits look random.
MIX = np.uint64(0x9E3779B97F4A7C15)


def keys_in_order(found: FoundBlocks, recent_ns: NDArray[np.uint64]) -> tuple[StoredBlocks, list[bytes]]:
    """The blocks in order, and the names of the orphans: those that hang, however far up, on a block
    that is missing. `recent_ns`: when each was last written or used.

    A tree of chains is as recent as the most recent block in it; so is each branch among its siblings.
    A parent may be younger than its child: it was found bad, deleted and stored again.
    """
    parents = _find_parents(found)
    order = _order_chains(parents, recent_ns)
    place = np.full(parents.size + 1, NO_PLACE)
    place[order] = np.arange(order.size)
    is_orphan = place[:-1] == NO_PLACE
    return found.stored(order, place[parents[order]]), found.take(is_orphan).names()


def _find_parents(found: FoundBlocks) -> Places:
    """Where each block's parent stands in `found`, in the same domain; or NO_PLACE, or MISSING.

    By a table of places, of which each names one of the blocks that fall to it: who isn't there goes into
    the next one. So many tables as are worth it; what is left then is looked for by name."""
    bits = max(1, (2 * len(found)).bit_length())
    names, wanted = _spread(found, found.key, bits), _spread(found, found.parent, bits)
    parents = np.where(_is_any(found.parent), MISSING, NO_PLACE)
    searching, waiting = np.flatnonzero(parents == MISSING), np.arange(len(found))
    for _ in range(TABLES_MAX):
        table = np.full(1 << bits, NO_PLACE, np.int32)
        table[names[waiting]] = waiting
        candidates = table[wanted[searching]].astype(np.intp)
        # None fell there: whoever is looked for isn't anywhere.
        searching, candidates = searching[candidates >= 0], candidates[candidates >= 0]
        is_it = found.is_parent(candidates, searching)
        parents[searching[is_it]] = candidates[is_it]
        searching = searching[~is_it]
        waiting = waiting[table[names[waiting]] != waiting]
        if not searching.size:
            return parents
    places = dict(zip(found.take(waiting).names(), waiting.tolist(), strict=True))
    parents[searching] = [places.get(name, MISSING) for name in found.take(searching).parent_names()]
    return parents


def _spread(found: FoundBlocks, keys: NDArray[np.uint64], bits: int) -> NDArray[np.intp]:
    """For each block a number below 2**bits, by this key in its domain."""
    mixed = (found.namespace.astype(np.uint64) << np.uint64(32)) + found.tenant
    for word in keys.T:
        mixed *= MIX
        mixed += word
    mixed ^= mixed >> np.uint64(32)
    mixed *= MIX
    return (mixed >> np.uint64(64 - bits)).astype(np.intp)


def _is_any(keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which of them are not all zeros."""
    one, two, three, four = keys.T
    any_of: NDArray[np.bool_] = (one | two | three | four) != 0
    return any_of


def most_recent(found: FoundBlocks, recent_ns: NDArray[np.uint64], count: int) -> Places:
    """The places of so many blocks: each with all that it hangs on, the most recent ones. No orphans."""
    parents = _find_parents(found)
    order = _order_chains(parents, recent_ns)
    recent = recent_ns.copy()
    for place in order[::-1].tolist():
        if parents[place] != NO_PLACE:
            recent[parents[place]] = max(recent[parents[place]], recent[place])
    # Parents stand before their children in `order`, and are as recent: so they are kept first.
    by_recency = np.argsort(-recent[order].astype(np.int64), kind="stable")
    chosen: Places = order[by_recency[:count]]
    return chosen


def _order_chains(parents: Places, recent_ns: NDArray[np.uint64]) -> Places:
    """All but the orphans."""
    # One block more, at the end, on which all trees hang, and one that stands for what is missing.
    root, missing = parents.size, parents.size + 1
    parents = np.append(parents, [missing, missing])
    parents[parents == NO_PLACE] = root
    parents[parents == MISSING] = missing
    children = np.bincount(parents, minlength=parents.size)
    levels = _levels(parents, children, root)
    recent = np.append(recent_ns, np.zeros(2, np.uint64))
    sizes = np.ones(parents.size, np.intp)
    for level in reversed(levels):
        np.maximum.at(recent, parents[level], recent[level])
        np.add.at(sizes, parents[level], sizes[level])
    # Each stands behind its parent, its older siblings, and all that hangs on these. The root at -1.
    position = _sizes_before(parents, children, recent, sizes)
    position[root] = -1
    for level in levels:
        position[level] += 1 + position[parents[level]]
    reached = np.concatenate([np.empty(0, np.intp), *levels])
    order = np.empty_like(reached)
    order[position[reached]] = reached
    return order


def _levels(parents: Places, children: Places, root: int) -> list[Places]:
    """The root's children, theirs, and so on: all that hang on it, however deep."""
    by_parent = np.argsort(parents)
    first = np.cumsum(children) - children
    levels, level = [], np.array([root])
    while level.size:
        counts = children[level]
        starts = np.repeat(first[level] - np.cumsum(counts) + counts, counts)
        level = by_parent[starts + np.arange(starts.size)]
        levels.append(level)
    return levels


def _sizes_before(parents: Places, children: Places, recent: NDArray[np.uint64], sizes: Places) -> Places:
    """How many blocks each one's older siblings are, with all that hangs on these."""
    siblings = np.flatnonzero(children[parents] > 1)
    siblings = siblings[np.lexsort((recent[siblings], parents[siblings]))]
    ends = np.cumsum(sizes[siblings])
    starts = ends - sizes[siblings]
    is_first = np.diff(parents[siblings], prepend=-1) != 0
    before = np.zeros_like(sizes)
    before[siblings] = starts - np.maximum.accumulate(np.where(is_first, starts, 0))
    return before
