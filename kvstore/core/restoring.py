"""Blocks that were found on disk: which are kept, when the tier holds fewer, and how they come back.

There may be millions of them, and nobody is served before. So they are handled in runs, blocks of
which each hangs on the one told before it: what is done for a block is done in C.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from kvstore.core.blocks import NO_ROW
from kvstore.core.errors import check
from kvstore.core.memory import Memory
from kvstore.core.types import DISK, BlockKey, DomainId, Rows, StoredKey, domain_id

__all__ = ["restore_blocks"]

NO_DOMAIN = -1


def restore_blocks(memory: Memory, found: Sequence[StoredKey]) -> None:
    """Takes in the most recent ones, as many as the tier holds. The others are to be deleted.

    `found` names each block after its parent and the least recent chains first. No engine is there yet.
    """
    room, kept = memory.pools[DISK].free_count, found
    if len(found) > room:
        chosen = _most_recent_chains(found, room)
        memory.replicas.deleted += [block for block in found if block not in chosen]
        kept = tuple(chosen)
    rows = memory.blocks.take_rows(len(kept))
    runs = _find_runs(kept)
    domains = [domain_id(kept[first].namespace, kept[first].tenant) for first in runs.tolist()]
    # First of all: whose blocks they are is counted with their frames.
    memory.blocks.domain[rows] = np.repeat(np.array(domains, np.int64), np.diff(runs, append=rows.size))
    memory.replicas.add(DISK, rows)
    memory.blocks.valid[DISK][rows] = True
    memory.blocks.writer[rows] = [block.writer for block in kept]
    _restore_runs(memory, rows, kept, runs, domains)
    memory.eviction.touch(DISK, _tails_first(rows, runs))


def _most_recent_chains(found: Sequence[StoredKey], capacity: int) -> dict[StoredKey, None]:
    """Up to `capacity` blocks, each with all that it hangs on, in the order of `found`."""
    by_key = {(block.namespace, block.tenant, block.key): block for block in found}
    kept: set[StoredKey] = set()
    for block in reversed(found):
        chain: list[StoredKey] = []
        link: StoredKey | None = block
        while link is not None and link not in kept:
            chain.append(link)
            link = by_key.get((link.namespace, link.tenant, BlockKey(link.parent)))
        # Of the last one there may be room for the head only.
        kept.update(chain[max(0, len(kept) + len(chain) - capacity) :])
        if len(kept) == capacity:
            break
    return {block: None for block in found if block in kept}


def _find_runs(found: Sequence[StoredKey]) -> Rows:
    """Where each run begins."""
    hangs = [
        block.parent == above.key and block.tenant == above.tenant and block.namespace == above.namespace
        for above, block in pairwise(found)
    ]
    begins = np.ones(len(found), np.bool_)
    np.logical_not(hangs, out=begins[1:])
    return np.flatnonzero(begins)


def _restore_runs(
    memory: Memory, rows: Rows, found: Sequence[StoredKey], runs: Rows, domains: list[DomainId]
) -> None:
    """`domains`: of each run."""
    blocks, prefix = memory.blocks, memory.prefix
    keys, numbers = [block.key for block in found], rows.tolist()
    for row, key in zip(numbers, keys, strict=True):
        blocks.key[row] = key
    heads = [found[first] for first in runs.tolist()]
    for first, end, domain in _stretches(runs, domains, rows.size):
        prefix.restore(domain, keys[first:end], numbers[first:end])
    above = [
        prefix.find(domain, head.parent) if head.parent else NO_ROW
        for head, domain in zip(heads, domains, strict=True)
    ]
    check(None not in above, "a block was found without its parent")
    parents = np.append(NO_ROW, rows)[:-1]
    parents[runs] = above
    blocks.depth[rows] = _depths(blocks.capacity, rows, runs, parents)
    blocks.owner[rows] = [block.owner for block in found]
    prefix.set_parents(rows, parents)


def _stretches(runs: Rows, domains: list[DomainId], count: int) -> Iterator[tuple[int, int, DomainId]]:
    """Where blocks of one domain stand together: first, end and the domain."""
    changes = np.flatnonzero(np.diff(np.array(domains, np.int64), prepend=NO_DOMAIN))
    firsts = runs[changes].tolist()
    for change, first, end in zip(changes.tolist(), firsts, [*firsts[1:], count], strict=False):
        yield first, end, domains[change]


def _depths(capacity: int, rows: Rows, runs: Rows, parents: Rows) -> Rows:
    """How deep each block stands in its tree. What is known of a run's head holds for the run."""
    places = np.arange(rows.size)
    run_of = np.repeat(np.arange(runs.size), np.diff(runs, append=rows.size))
    place_of = np.full(capacity, rows.size)
    place_of[rows] = places
    is_root = parents[runs] == NO_ROW
    above = place_of[parents[runs]]
    check((is_root | (above < runs)).all(), "a block was found before its parent")
    above[is_root] = 0
    steps = np.where(is_root, 0, 1 + above - runs[run_of[above]])
    depths = list[int]()
    for run, step in zip(run_of[above].tolist(), steps.tolist(), strict=True):
        depths.append(depths[run] + step if step else 0)
    return np.array(depths, np.intp)[run_of] + places - runs[run_of]


def _tails_first(rows: Rows, runs: Rows) -> Rows:
    """The rows as if each run had been used in turn: of each its tail before its head."""
    ends = np.append(runs, rows.size)[1:]
    turned: Rows = rows[np.repeat(runs + ends - 1, ends - runs) - np.arange(rows.size)]
    return turned
