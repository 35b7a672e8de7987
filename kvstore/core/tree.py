"""The tree that indexed blocks form: what a block hangs on, and what hangs on it."""

import numpy as np

from kvstore.core.blocks import NO_ROW, Blocks
from kvstore.core.types import Rows

__all__ = ["with_ancestors", "with_descendants"]

# Of all rows a smaller part than one in so many is sooner sorted than marked.
SORTED_PART = 32


def with_ancestors(blocks: Blocks, rows: Rows) -> Rows:
    """The blocks and all that they hang on."""
    parent, is_found = blocks.parent, np.zeros(blocks.capacity, np.bool_)
    level = _distinct(blocks, rows)
    levels: list[Rows] = []
    while level.size:
        levels.append(level)
        is_found[level] = True
        above = parent[level]
        above = above[above != NO_ROW]
        level = _distinct(blocks, above[~is_found[above]])
    return np.concatenate(levels) if levels else level


def with_descendants(blocks: Blocks, rows: Rows) -> Rows:
    """The indexed blocks among `rows` and all that hang on them, deepest last."""
    level = np.unique(rows[blocks.indexed[rows]])
    if not level.size:
        return level
    is_found = np.zeros(blocks.capacity, np.bool_)
    is_found[level] = True
    # Nobody keeps lists of children: they are rarely asked for, and then all are sorted once.
    members = np.flatnonzero(blocks.indexed)
    members = members[np.argsort(blocks.parent[members], kind="stable")]
    parents = blocks.parent[members]
    while level.size:
        first = np.searchsorted(parents, level, "left")
        count = np.searchsorted(parents, level, "right") - first
        starts = np.repeat(first - np.cumsum(count) + count, count)
        level = members[starts + np.arange(count.sum())]
        # One may have been given together with what it hangs on.
        level = level[~is_found[level]]
        is_found[level] = True
    found = np.flatnonzero(is_found)
    order: Rows = found[np.argsort(blocks.depth[found], kind="stable")]
    return order


def _distinct(blocks: Blocks, rows: Rows) -> Rows:
    """Each of these once, in the order of their numbers."""
    if rows.size * SORTED_PART < blocks.capacity:
        return np.unique(rows)
    is_there = np.zeros(blocks.capacity, np.bool_)
    is_there[rows] = True
    return np.flatnonzero(is_there)
