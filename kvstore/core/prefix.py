"""The prefix index: which committed blocks there are, and the tree they form.

A block is found by its key within its domain, a namespace and a tenant. Its key covers all
tokens before it, so a found block's content is right for any prompt with that key. Every
indexed block but the first of a chain has an indexed parent: the union of the tiers is
prefix-closed. Who may be published and what may leave is decided in `memory.py`.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, takewhile
from operator import itemgetter
from typing import Protocol, cast

import numpy as np
from msgspec import Struct

from kvstore.core.blocks import NO_ROW, ONE, Blocks, all_of, as_table, none_of, without_none
from kvstore.core.errors import check
from kvstore.core.types import BlockKey, BlockRow, ChainPlace, DomainId, Rows, Tier
from kvstore.core.watching import IndexChanges

__all__ = ["PrefixIndex", "Publication", "chain_places"]

NO_KEY = BlockKey(b"")


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


class _New(Struct):
    """Facts of blocks on their way into the index, in step; depths by row."""

    depths: dict[int, int] = {}
    parents: list[int] = []
    domains: list[DomainId] = []
    owners: list[int] = []

    def add(self, domain: DomainId, owner: int, rows: list[int], parent: int, depth: int) -> None:
        """A piece of a chain that hangs on `parent`."""
        self.depths.update(zip(rows, range(depth, depth + len(rows)), strict=True))
        self.parents += [parent, *rows[:-1]]
        self.domains += [domain] * len(rows)
        self.owners += [owner] * len(rows)

    def depth(self, row: int, blocks: Blocks) -> int:
        """Of a block in the index or on its way there."""
        depth = self.depths.get(row)
        return int(blocks.depth[row]) if depth is None else depth


class PrefixIndex:
    """One dict a domain, from key to row. Nothing is ever found across domains."""

    def __init__(self, blocks: Blocks, tiers: tuple[Tier, ...]) -> None:
        """`tiers`: those that there are."""
        self._blocks = blocks
        self._tiers = tiers
        # What ends for a block that can't be found any more; without a tier below there is no copy to wish
        # or to wait for.
        self._ending = [blocks.shared, blocks.unwanted]
        if len(tiers) > 1:
            self._ending += [blocks.to_disk, blocks.undecided, *blocks.queued]
        self._rows: dict[DomainId, dict[BlockKey, BlockRow]] = {}
        # While somebody watches: which blocks come to be found in a tier, and which no more.
        self.changes: IndexChanges | None = None

    def find(self, domain: DomainId, key: BlockKey) -> BlockRow | None:
        return self._rows.get(domain, {}).get(key)

    def domains(self) -> list[DomainId]:
        """Of which something can be found."""
        return list(self._rows)

    def entries(self) -> Iterator[tuple[tuple[DomainId, BlockKey], BlockRow]]:
        """Everything that can be found."""
        for domain, known in self._rows.items():
            for key, row in known.items():
                yield (domain, key), row

    def find_prefix(
        self, domain: DomainId, keys: Sequence[BlockKey], pending: dict[ChainPlace, BlockRow]
    ) -> "array[int]":
        """Rows of the leading keys that are known; `pending` holds those only the asker may see.

        A block is found in its place only: as the child of the block before it.
        """
        known = self._rows.get(domain, {})
        count = _known_count(known, keys)
        try:
            rows = itemgetter(*keys[:count])(known) if count > 1 else [known[key] for key in keys[:count]]
        except KeyError:  # No chain of keys: that the last is known says nothing of the others.
            rows = [known[key] for key in takewhile(known.__contains__, keys)]
        table = as_table(rows)
        if rows:
            self._cut_chain(table)
        if pending:
            barred = self._blocks.barred
            for place in chain_places(keys, len(table), len(keys)):
                row = pending.get(place, NO_ROW)
                if row == NO_ROW or barred[row]:
                    break
                table.append(row)
        return table

    def _cut_chain(self, table: "array[int]") -> None:
        """Takes off what does not hang on the block before it."""
        rows = np.frombuffer(table, np.intp)
        parents = self._blocks.parent[rows]
        astray = parents[1:] != rows[:-1]
        good = 0 if parents[0] != NO_ROW else rows.size if none_of(astray) else 1 + int(astray.argmax())
        if self._blocks.has_barred:
            good = min(good, self._count_unbarred(rows))
        del rows  # A table that numpy looks at can't be cut.
        del table[good:]

    def _count_unbarred(self, rows: Rows) -> int:
        """How many there are before the first that was forgotten."""
        barred = self._blocks.barred[rows]
        return int(barred.argmax()) if barred.any() else rows.size

    def publish(self, publications: Iterable[Publication]) -> Rows:
        """Makes committed blocks findable, the first commit of a key; returns the rows that are new.

        Python walks the dicts, numpy sets the facts of all new blocks at once.
        """
        new = _New()
        for publication in publications:
            known = self._rows.setdefault(publication.domain, {})
            place = publication.first
            while place < publication.end:
                if publication.keys[place] in known:
                    place += 1
                else:
                    place = self._publish_piece(known, publication, place, new)
        return self._set_facts(new)

    def _publish_piece(
        self, known: dict[BlockKey, BlockRow], publication: Publication, place: int, new: "_New"
    ) -> int:
        """Publishes blocks from `place` up to the next that is known; returns where that is. Before them
        go those of their ancestors that nobody knows any more: another's block under the same key won
        at the time and has been evicted since."""
        keys, first, end = publication.keys, place, publication.end
        while first and keys[first - 1] not in known:
            first -= 1
        chain = _rows_by_key(publication, first, end)
        if len(chain) < end - first or not known.keys().isdisjoint(chain):
            # Up to what is known, or is named twice by an engine whose keys are not digests.
            end = next(i for i in range(first + 1, end) if keys[i] in known or keys[i] in keys[first:i])
            chain = _rows_by_key(publication, first, end)
        names = self._blocks.key
        astray = next((i for i, row in enumerate(chain.values()) if known.get(names[row]) == row), None)
        if astray is not None:
            # Found already, under another key: what an engine at fault wrote over stays its own.
            chain, end = dict(islice(chain.items(), astray)), publication.end
        parent = known[keys[first - 1]] if first else NO_ROW
        if first and new.depth(parent, self._blocks) != first - 1:
            # The engine is at fault: what hangs on a block that stands elsewhere is found nowhere.
            return publication.end
        if self._blocks.has_barred:
            # What was forgotten does not come back, and nothing that hangs on it does.
            hangs_on_it = parent != NO_ROW and self._blocks.barred[parent]
            good = 0 if hangs_on_it else self._count_unbarred(np.array([*chain.values()], np.intp))
            if good < len(chain):
                chain, end = dict(islice(chain.items(), good)), publication.end
        known.update(chain)
        for key, row in chain.items():
            names[row] = key
        if chain:
            new.add(publication.domain, publication.owner, [*chain.values()], parent, first)
        return max(place, end)

    def restore(self, domain: DomainId, keys: list[BlockKey], rows: list[int]) -> None:
        """Blocks that lie on disk can be found from now on. Their parents are set at once after it."""
        known = self._rows.setdefault(domain, {})
        count = len(known) + len(keys)
        known.update(zip(keys, cast("list[BlockRow]", rows), strict=True))
        check(len(known) == count, "a key was found twice")

    def _set_facts(self, new: "_New") -> Rows:
        rows = np.array([*new.depths], np.intp)
        self._blocks.domain[rows] = new.domains
        self._blocks.owner[rows] = new.owners
        self._blocks.depth[rows] = [*new.depths.values()]
        self.set_parents(rows, np.array(new.parents, np.intp))
        return rows

    def set_parents(self, rows: Rows, parents: Rows) -> None:
        """Of blocks that can be found from now on."""
        blocks = self._blocks
        blocks.parent[rows] = parents
        blocks.indexed[rows] = True
        above = without_none(parents)
        check(all_of(blocks.indexed[above]), "a block was published before its parent")
        np.add.at(blocks.children, above, ONE)
        for tier in self._tiers:
            np.add.at(blocks.children_in[tier], self._with_frame(tier, rows, parents, above), ONE)
            if self.changes is not None:
                self.changes.stored(tier, rows[blocks.valid[tier][rows]])

    def remove(self, rows: Rows) -> None:
        """Makes blocks unfindable; their replicas stay. All of their children go with them."""
        blocks = self._blocks
        blocks.changes += 1
        names, domains, parents = blocks.key, blocks.domain[rows].tolist(), blocks.parent[rows]
        for row, domain in zip(rows.tolist(), domains, strict=True):
            del self._rows[domain][names[row]]
        for domain in {*domains}:
            if not self._rows[domain]:
                del self._rows[domain]
        above = without_none(parents)
        np.subtract.at(blocks.children, above, ONE)
        for tier in self._tiers:
            np.subtract.at(blocks.children_in[tier], self._with_frame(tier, rows, parents, above), ONE)
            if self.changes is not None:
                self.changes.removed(tier, rows[blocks.valid[tier][rows]])
        blocks.indexed[rows] = False
        blocks.parent[rows] = NO_ROW
        for facts in self._ending:
            facts[rows] = False
        check(not np.count_nonzero(blocks.children[rows]), "a block left the index before its children")

    def _with_frame(self, tier: Tier, rows: Rows, parents: Rows, above: Rows) -> Rows:
        """The parents of those that have a frame in the tier: mostly `above`, those of all, or none."""
        there = self._blocks.has_frame(tier, rows)
        return above if all_of(there) else without_none(parents[there])

    def count_children(self, tier: Tier, rows: Rows, change: int) -> None:
        """Tells the parents of indexed `rows` that these have come to, or left, a tier."""
        if not rows.size:
            return
        parents = without_none(self._blocks.parent[rows])
        np.add.at(self._blocks.children_in[tier], parents, np.int32(change))


def chain_places(keys: Sequence[BlockKey], first: int, end: int) -> Iterator[ChainPlace]:
    """Where the blocks `first` to `end` of a chain stand."""
    above = keys[first - 1 : end - 1] if first else [NO_KEY, *keys][:end]
    return zip(range(first, end), above, keys[first:end], strict=True)


def _rows_by_key(publication: Publication, first: int, end: int) -> dict[BlockKey, BlockRow]:
    rows = cast("Sequence[BlockRow]", publication.rows[first:end])
    return dict(zip(publication.keys[first:end], rows, strict=True))


def _known_count(known: dict[BlockKey, BlockRow], keys: Sequence[BlockKey]) -> int:
    """How many leading keys are known. With a key all that it is chained to are: so a few looks do."""
    if not keys or keys[0] not in known:
        return 0
    if keys[-1] in known:
        return len(keys)
    return bisect_left(range(len(keys)), True, key=lambda place: keys[place] not in known)
