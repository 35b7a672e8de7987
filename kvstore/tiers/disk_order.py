"""The order in which a restart tells of the blocks on disk: parents first, least recent chains first."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvstore.core.types import StoredKey
from kvstore.tiers.disk_index import NO_PARENT, FoundBlocks, Places

__all__ = ["keys_in_order", "most_recent"]

MISSING = -2
# An odd number whose bits look random.
MIX = np.uint64(0x9E3779B97F4A7C15)


def keys_in_order(found: FoundBlocks, recent_ns: NDArray[np.uint64]) -> tuple[list[StoredKey], list[bytes]]:
    """The blocks in order, and the names of the orphans: those that hang, however far up, on a block
    that is missing. `recent_ns`: when each was last written or used.

    A tree of chains is as recent as the most recent block in it; so is each branch among its siblings.
    A parent may be younger than its child: it was found bad, deleted and stored again.
    """
    parents = _find_parents(found)
    order = _order_chains(parents, recent_ns)
    place = np.full(parents.size + 1, NO_PARENT)
    place[order] = np.arange(order.size)
    is_orphan = place[:-1] == NO_PARENT
    return found.take(order).stored_keys(place[parents[order]]), found.take(is_orphan).names()


def _find_parents(found: FoundBlocks) -> Places:
    """Where each block's parent stands in `found`, in the same domain; or NO_PARENT, or MISSING."""
    names = _mix([found.namespace, found.tenant, *found.key.T])
    wanted = _mix([found.namespace, found.tenant, *found.parent.T])
    by_name, by_wanted = np.argsort(names), np.argsort(wanted)
    names = names[by_name]
    place = np.empty_like(by_wanted)
    # In their order, so that a search begins near where the last one ended: it halves the time.
    place[by_wanted] = np.searchsorted(names, wanted[by_wanted])
    parents = np.where(found.parent.any(axis=1), MISSING, NO_PARENT)
    # Names that are equal when mixed stand side by side: one after the other is looked at.
    searching = np.flatnonzero(parents == MISSING)
    while searching.size:
        searching = searching[place[searching] < names.size]
        searching = searching[names[place[searching]] == wanted[searching]]
        candidate = by_name[place[searching]]
        is_it = (
            (found.namespace[candidate] == found.namespace[searching])
            & (found.tenant[candidate] == found.tenant[searching])
            & (found.key[candidate] == found.parent[searching]).all(axis=1)
        )
        parents[searching[is_it]] = candidate[is_it]
        searching = searching[~is_it]
        place[searching] += 1
    return parents


def most_recent(found: FoundBlocks, recent_ns: NDArray[np.uint64], count: int) -> Places:
    """The places of so many blocks: each with all that it hangs on, the most recent ones. No orphans."""
    parents = _find_parents(found)
    order = _order_chains(parents, recent_ns)
    recent = recent_ns.copy()
    for place in order[::-1].tolist():
        if parents[place] != NO_PARENT:
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
    parents[parents == NO_PARENT] = root
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


def _mix(columns: Iterable[NDArray[Any]]) -> NDArray[np.uint64]:
    mixed = np.zeros(1, np.uint64)
    for column in columns:
        mixed = (mixed ^ column) * MIX
        mixed ^= mixed >> np.uint64(29)
    return mixed
