"""The prefix index: which committed blocks there are, and the tree they form.

A block is found by its key within its domain, a namespace and a tenant. Its key covers all
tokens before it, so a found block's content is right for any prompt with that key. Every
indexed block but the first of a chain has an indexed parent: the union of the tiers is
prefix-closed. Who may be published and what may leave is decided in `memory.py`.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Protocol

import numpy as np

from kvstore.core.blocks import NO_FRAME, NO_ROW, ONE, Blocks
from kvstore.core.errors import check
from kvstore.core.types import BlockKey, BlockRow, DomainId, NamespaceId, Rows, StoredKey, TenantId, Tier

__all__ = ["PrefixIndex", "Publication", "domain_id", "domain_parts"]


def domain_id(namespace: NamespaceId, tenant: TenantId) -> DomainId:
    return DomainId(namespace << 32 | tenant)


def domain_parts(domain: DomainId) -> tuple[NamespaceId, TenantId]:
    return NamespaceId(domain >> 32), TenantId(domain & 0xFFFFFFFF)


class Publication(Protocol):
    """Blocks `first` to `end` of a table, to be found under their keys from now on."""

    @property
    def domain(self) -> DomainId: ...
    @property
    def owner(self) -> int: ...
    @property
    def rows(self) -> "array[int]": ...
    @property
    def keys(self) -> list[BlockKey]: ...
    @property
    def first(self) -> int: ...
    @property
    def end(self) -> int: ...


@dataclass(slots=True)
class _New:
    """Facts of blocks on their way into the index. `depth` is by row, in order."""

    domains: list[DomainId] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    depth: dict[int, int] = field(default_factory=dict)

    def add(self, domain: DomainId, owner: int, row: BlockRow, parent: int, depth: int) -> None:
        self.domains.append(domain)
        self.owners.append(owner)
        self.parents.append(parent)
        self.depth[row] = depth


class PrefixIndex:
    """One dict a domain, from key to row. Nothing is ever found across domains."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self._rows: dict[DomainId, dict[BlockKey, BlockRow]] = {}

    def find(self, domain: DomainId, key: BlockKey) -> BlockRow | None:
        return self._rows.get(domain, {}).get(key)

    def entries(self) -> Iterator[tuple[tuple[DomainId, BlockKey], BlockRow]]:
        """Everything that can be found."""
        for domain, known in self._rows.items():
            for key, row in known.items():
                yield (domain, key), row

    def find_prefix(
        self, domain: DomainId, keys: Sequence[BlockKey], pending: dict[BlockKey, BlockRow]
    ) -> list[BlockRow]:
        """Rows of the leading keys that are known; `pending` holds those only the asker may see."""
        known = self._rows.get(domain, {})
        found = keys[: _known_count(known, keys)]
        try:
            rows = list(map(known.__getitem__, found))
        except KeyError:  # No chain of keys: that the last is known says nothing of the others.
            rows = [known[key] for key in takewhile(known.__contains__, found)]
        if pending:
            for key in keys[len(rows) :]:
                row = known.get(key, pending.get(key, NO_ROW))
                if row == NO_ROW:
                    break
                rows.append(BlockRow(row))
        return rows

    def publish(self, publications: Iterable[Publication]) -> Rows:
        """Makes committed blocks findable, the first commit of a key; returns the rows that are new.

        Python walks the dicts, numpy sets the facts of all new blocks at once.
        """
        new = _New()
        for publication in publications:
            known = self._rows.setdefault(publication.domain, {})
            for place in range(publication.first, publication.end):
                if publication.keys[place] not in known:
                    self._publish_block(known, publication, place, new)
        return self._set_facts(new)

    def _publish_block(
        self, known: dict[BlockKey, BlockRow], publication: Publication, place: int, new: "_New"
    ) -> None:
        """Publishes one block, and before it those of its ancestors that nobody knows any more:
        another's block under the same key won at the time and has been evicted since."""
        first = place
        while first and publication.keys[first - 1] not in known:
            first -= 1
        for i in range(first, place + 1):
            key, row = publication.keys[i], BlockRow(publication.rows[i])
            known[key] = row
            self._blocks.key[row] = key
            parent = known[publication.keys[i - 1]] if i else NO_ROW
            new.add(publication.domain, publication.owner, row, parent, i)

    def restore(self, rows: Iterable[BlockRow], stored: Iterable[StoredKey]) -> Rows:
        """Makes blocks findable that lie on disk, each after its parent. The keys are new."""
        new = _New()
        for row, block in zip(rows, stored, strict=True):
            domain = domain_id(block.namespace, block.tenant)
            known = self._rows.setdefault(domain, {})
            check(block.key not in known, "a key was found twice")
            check(not block.parent or block.parent in known, "a block was found before its parent")
            parent = known[block.parent] if block.parent else NO_ROW
            depth = new.depth.get(parent, -1) if parent in new.depth else int(self._blocks.depth[parent])
            known[block.key] = row
            self._blocks.key[row] = block.key
            new.add(domain, 0, row, parent, 0 if parent == NO_ROW else depth + 1)
        return self._set_facts(new)

    def _set_facts(self, new: "_New") -> Rows:
        blocks = self._blocks
        rows = np.array(list(new.depth), np.intp)
        parents = np.array(new.parents, np.intp)
        blocks.domain[rows] = new.domains
        blocks.owner[rows] = new.owners
        blocks.parent[rows] = parents
        blocks.depth[rows] = list(new.depth.values())
        blocks.indexed[rows] = True
        parents = parents[parents != NO_ROW]
        check(blocks.indexed[parents].all(), "a block was published before its parent")
        np.add.at(blocks.children, parents, ONE)
        for tier in Tier:
            self.count_children(tier, rows[blocks.frame[tier][rows] != NO_FRAME], 1)
        return rows

    def remove(self, rows: Rows) -> None:
        """Makes blocks unfindable; their replicas stay. All of their children go with them."""
        blocks = self._blocks
        for row in rows.tolist():
            domain = DomainId(int(blocks.domain[row]))
            del self._rows[domain][BlockKey(blocks.key[row])]
            if not self._rows[domain]:
                del self._rows[domain]
        for tier in Tier:
            self.count_children(tier, rows[blocks.frame[tier][rows] != NO_FRAME], -1)
        parents = blocks.parent[rows]
        np.subtract.at(blocks.children, parents[parents != NO_ROW], ONE)
        blocks.indexed[rows] = False
        blocks.parent[rows] = NO_ROW
        for facts in (blocks.reused, blocks.shared, blocks.to_disk, blocks.unwanted, *blocks.queued):
            facts[rows] = False
        check(not blocks.children[rows].any(), "a block left the index before its children")

    def count_children(self, tier: Tier, rows: Rows, change: int) -> None:
        """Tells the parents of indexed `rows` that these have come to, or left, a tier."""
        parents = self._blocks.parent[rows]
        np.add.at(self._blocks.children_in[tier], parents[parents != NO_ROW], np.int32(change))

    def with_ancestors(self, rows: Rows) -> Rows:
        """The blocks and all that they hang on."""
        parent = self._blocks.parent
        found = level = np.unique(rows)
        while level.size:
            above = np.unique(parent[level])
            level = np.setdiff1d(above[above != NO_ROW], found)
            found = np.concatenate([found, level])
        return found

    def with_descendants(self, rows: Rows) -> Rows:
        """The indexed blocks among `rows` and all that hang on them, deepest last."""
        blocks = self._blocks
        found = level = np.unique(rows[blocks.indexed[rows]])
        if not level.size:
            return found
        # Nobody keeps lists of children: they are rarely asked for, and then all are sorted once.
        members = np.flatnonzero(blocks.indexed)
        members = members[np.argsort(blocks.parent[members], kind="stable")]
        parents = blocks.parent[members]
        while level.size:
            first = np.searchsorted(parents, level, "left")
            count = np.searchsorted(parents, level, "right") - first
            starts = np.repeat(first - np.cumsum(count) + count, count)
            level = members[starts + np.arange(count.sum())]
            found = np.concatenate([found, level])
        # A row may have been given together with one it hangs on: it is found twice then.
        unique = np.unique(found)
        order: Rows = unique[np.argsort(blocks.depth[unique], kind="stable")]
        return order


def _known_count(known: dict[BlockKey, BlockRow], keys: Sequence[BlockKey]) -> int:
    """How many leading keys are known. With a key all that it is chained to are: so a few looks do."""
    if not keys or keys[0] not in known:
        return 0
    if keys[-1] in known:
        return len(keys)
    return bisect_left(range(len(keys)), True, key=lambda place: keys[place] not in known)
