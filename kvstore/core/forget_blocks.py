"""Forget: which blocks of the index are in its scope, and which must go with them."""

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Many
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvstore.core.blocks import NO_ROW, Rows
from kvstore.core.engines import Engine
from kvstore.core.forget_scope import Scope
from kvstore.core.memory import Memory
from kvstore.core.sequences import session_owner
from kvstore.core.sessions import Sessions
from kvstore.core.tree import with_ancestors
from kvstore.core.types import BlockKey, DomainId

__all__ = ["ScopeBlocks", "order_by_depth"]

# Sorted by their two lower bytes as long as these say all: eight times as fast.
SHORT = 1 << 16
# To compare a column with each of so many values is quicker than to sort it.
COMPARED_MAX = 32


class ScopeBlocks:
    """Looks at all blocks at once, in columns: there may be a million."""

    def __init__(self, memory: Memory, sessions: Sessions, engines: Callable[[], Iterable[Engine]]) -> None:
        self._memory = memory
        self._sessions = sessions
        self._engines = engines

    def find(self, scope: Scope) -> Rows:
        """Blocks in the index that are in scope, with all that must go with them."""
        blocks, prefix = self._memory.blocks, self._memory.prefix
        domains = [domain for domain in prefix.domains() if scope.covers(domain)]
        mine = blocks.indexed & _is_one_of(blocks.domain, domains)
        if scope.writers:
            mine &= _is_one_of(blocks.writer, scope.writers)
        elif scope.session:
            owners = [session_owner(domain, scope.session) for domain in domains]
            mine &= _is_one_of(blocks.owner, owners)
            for domain, keys in self._chains_of(scope, domains):
                mine[np.array(prefix.find_prefix(domain, keys, {}), np.intp)] = True
        if scope.session and not scope.whole:
            return self._own(np.flatnonzero(mine))
        if scope.session or scope.writers:
            self._spread(mine)
        return np.flatnonzero(mine)

    def _spread(self, mine: NDArray[np.bool_]) -> None:
        """To all that hangs on these: level by level, which looks at each block once."""
        blocks = self._memory.blocks
        rows = np.flatnonzero(blocks.indexed)
        depth = blocks.depth[rows]
        order = order_by_depth(depth)
        rows, ends = rows[order], np.cumsum(np.bincount(depth)).tolist()
        for begin, end in pairwise(ends):
            level = rows[begin:end]
            mine[level] |= mine[blocks.parent[level]]

    def _chains_of(
        self, scope: Scope, domains: Iterable[DomainId]
    ) -> Iterator[tuple[DomainId, Many[BlockKey]]]:
        """Of a session: what its last turn has left, and what its turns that are there hold."""
        for domain in domains:
            session = self._sessions.find(domain, scope.session)
            if session is not None:
                yield domain, session.keys
        for engine in self._engines():
            for sequence in engine.sequences.values():
                if scope.covers_work(engine, sequence.domain, sequence.session):
                    yield sequence.domain, sequence.keys

    def _own(self, rows: Rows) -> Rows:
        """Of a session's blocks those that nobody else has used, and on which nothing of others hangs."""
        blocks = self._memory.blocks
        own = rows[~blocks.shared[rows]]
        if not own.size:
            return own
        parents = blocks.parent[own]
        hanging = np.bincount(parents[parents != NO_ROW], minlength=blocks.capacity)
        others = own[blocks.children[own] != hanging[own]]
        return np.setdiff1d(own, with_ancestors(self._memory.blocks, others))


def order_by_depth(depth: NDArray[np.int32]) -> Rows:
    """Heads of chains first: the places of these depths in that order."""
    short = depth.max(initial=0) < SHORT
    order: Rows = np.argsort(depth.astype(np.uint16) if short else depth, kind="stable")
    return order


def _is_one_of(column: NDArray[Any], values: Many[int]) -> NDArray[np.bool_]:
    """`np.isin`, which sorts a million to find one."""
    if len(values) > COMPARED_MAX:
        return np.isin(column, values)
    found = np.zeros(column.size, np.bool_)
    for value in values:
        found |= column == value
    return found
