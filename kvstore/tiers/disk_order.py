"""The order in which a restart tells of the blocks on disk: parents first, least recent chains first."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from kvstore.tiers.disk_format import BlockEntry

__all__ = ["order_chains"]

# Namespace and tenant at the head of a block's name; parents are looked for within them.
DOMAIN_BYTES = 8
NO_PARENT, MISSING = -1, -2

Numbers = NDArray[np.intp]


def order_chains(entries: Mapping[bytes, BlockEntry]) -> tuple[list[bytes], list[bytes]]:
    """Block names in order, and the orphans: those that hang, however far up, on a block that is missing.

    A tree of chains is as recent as the newest block in it; so is each branch among its siblings.
    A parent may be younger than its child: it was found bad, deleted and stored again.
    """
    names = list(entries)
    place = {name: number for number, name in enumerate(names)}
    parents = np.array(
        [
            place.get(name[:DOMAIN_BYTES] + entry.parent, MISSING) if entry.parent else NO_PARENT
            for name, entry in entries.items()
        ],
        np.intp,
    )
    recent = np.array([entry.created_ns for entry in entries.values()], np.uint64)
    levels = _levels(parents)
    for level in reversed(levels[1:]):
        np.maximum.at(recent, parents[level], recent[level])
    order = _preorder(parents, recent, levels)
    reached = np.zeros(len(names), np.bool_)
    reached[order] = True
    return [names[i] for i in order.tolist()], [names[i] for i in np.flatnonzero(~reached).tolist()]


def _levels(parents: Numbers) -> list[Numbers]:
    """The roots, their children, and so on: all that hang on a root, however deep."""
    by_parent = np.argsort(parents, kind="stable")
    sorted_parents = parents[by_parent]
    levels = [np.flatnonzero(parents == NO_PARENT)]
    while levels[-1].size:
        level = levels[-1]
        first = np.searchsorted(sorted_parents, level, "left")
        count = np.searchsorted(sorted_parents, level, "right") - first
        starts = np.repeat(first - np.cumsum(count) + count, count)
        levels.append(by_parent[starts + np.arange(count.sum())])
    return levels[:-1]


def _preorder(parents: Numbers, recent: NDArray[np.uint64], levels: list[Numbers]) -> Numbers:
    """Each block before all that hang on it, siblings by how recent they are, the older first."""
    sizes = np.ones(parents.size, np.intp)
    for level in reversed(levels[1:]):
        np.add.at(sizes, parents[level], sizes[level])
    # What a block's older siblings, and all that hangs on these, take before it.
    siblings = np.lexsort((recent, parents))
    before = np.cumsum(sizes[siblings]) - sizes[siblings]
    is_first = np.diff(parents[siblings], prepend=MISSING - 1) != 0
    starts = np.maximum.accumulate(np.where(is_first, np.arange(parents.size), 0))
    offset = np.empty_like(sizes)
    offset[siblings] = before - before[starts]
    position = np.empty_like(sizes)
    for depth, level in enumerate(levels):
        position[level] = offset[level] + (1 + position[parents[level]] if depth else 0)
    reached = np.concatenate(levels) if levels else parents[:0]
    order = np.empty_like(reached)
    order[position[reached]] = reached
    return order
