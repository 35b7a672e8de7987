"""Blocks that were found on disk: which are kept, when the tier holds fewer, and how they come back.

There may be millions of them, and nobody is served before. So they are handled in columns, and in runs,
blocks of which each hangs on the one told before it: what is done for a block is done in C.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from kvstore.core.blocks import NO_ROW
from kvstore.core.errors import check
from kvstore.core.memory import Memory
from kvstore.core.stored import NO_PLACE, StoredBlocks
from kvstore.core.types import DISK, DomainId, Rows, StoredKey

__all__ = ["restore_blocks"]


def restore_blocks(memory: Memory, blocks: Sequence[StoredKey]) -> None:
    """Takes in the most recent ones, as many as the tier holds. The others are to be deleted.

    `blocks` names each after its parent and the least recent chains first. No engine is there yet.
    """
    found, room = StoredBlocks.of(blocks), memory.pools[DISK].free_count
    if len(found) > room:
        chosen = _most_recent_chains(found.parents.tolist(), room)
        is_kept = np.zeros(len(found), np.bool_)
        is_kept[chosen] = True
        memory.replicas.deleted += [found[place] for place in np.flatnonzero(~is_kept).tolist()]
        found = found.take(np.flatnonzero(is_kept))
    rows = memory.blocks.take_rows(len(found))
    # First of all: whose blocks they are is counted with their frames.
    memory.blocks.domain[rows] = found.domains
    memory.replicas.add(DISK, rows)
    memory.blocks.valid[DISK][rows] = True
    memory.blocks.writer[rows] = found.writers
    places = np.arange(len(found))
    check((found.parents < places).all(), "a block was found before its parent")
    runs = np.flatnonzero((found.parents != places - 1) | (places == 0))
    _restore_runs(memory, rows, found, runs)
    memory.eviction.touch(DISK, _tails_first(rows, runs))


def _most_recent_chains(parents: list[int], capacity: int) -> list[int]:
    """The places of up to `capacity` blocks, each with all that it hangs on."""
    kept: set[int] = set()
    for place in range(len(parents) - 1, -1, -1):
        chain: list[int] = []
        link = place
        while link != NO_PLACE and link not in kept:
            chain.append(link)
            link = parents[link]
        # Of the last one there may be room for the head only.
        kept.update(chain[max(0, len(kept) + len(chain) - capacity) :])
        if len(kept) == capacity:
            break
    return list(kept)


def _restore_runs(memory: Memory, rows: Rows, found: StoredBlocks, runs: Rows) -> None:
    """`runs`: where each run begins."""
    blocks, prefix = memory.blocks, memory.prefix
    numbers, names = rows.tolist(), blocks.key
    for row, key in zip(numbers, found.keys, strict=True):
        names[row] = key
    for first, end, domain in _stretches(found):
        prefix.restore(domain, found.keys[first:end], numbers[first:end])
    blocks.depth[rows] = _depths(found.parents, runs)
    blocks.owner[rows] = found.owners
    # Where there is no parent, NO_PLACE names the last one, which stands for none.
    prefix.set_parents(rows, np.append(rows, NO_ROW)[found.parents])


def _stretches(found: StoredBlocks) -> Iterator[tuple[int, int, DomainId]]:
    """Where blocks of one domain stand together: first, end and the domain."""
    changes = np.flatnonzero(np.diff(found.domains, prepend=-1))
    for first, end in zip(changes.tolist(), [*changes[1:].tolist(), len(found)], strict=False):
        yield first, end, DomainId(int(found.domains[first]))


def _depths(parents: Rows, runs: Rows) -> Rows:
    """How deep each block stands in its tree. What is known of a run's head holds for the run."""
    places = np.arange(parents.size)
    run_of = np.repeat(np.arange(runs.size), np.diff(runs, append=parents.size))
    above = parents[runs]
    is_root = above == NO_PLACE
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
