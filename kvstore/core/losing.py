"""Blocks that the disk has found bad by itself, and dropped."""

from collections.abc import Iterable

import numpy as np

from kvstore.core.links import Links
from kvstore.core.memory import Memory
from kvstore.core.swaps import Swaps
from kvstore.core.tree import with_descendants
from kvstore.core.types import COPY, CPU, DISK, GPU, WRITE, Rows, StoredKey, domain_id

__all__ = ["lose_on_disk", "stored_rows"]


def lose_on_disk(memory: Memory, links: Links, swaps: Swaps, keys: Iterable[StoredKey]) -> None:
    """The copies on disk are gone. What hangs on them leaves the disk too, so that it stays prefix-closed;
    what has a copy in another tier stays there, and is written again.

    Right in every state: what is on its way to the disk just now is a later copy than the one that was
    lost; what is read just now leaves the index, and its copy goes when the read has ended; of what a
    swapped sequence claims the copy counts as there, and its load will fail.
    """
    blocks = memory.blocks
    rows = with_descendants(memory.blocks, stored_rows(memory, keys))
    rows = rows[blocks.has_frame(DISK, rows)]
    elsewhere = blocks.valid[CPU][rows] | (blocks.valid[GPU][rows] & (blocks.claims[rows] == 0))
    kept = elsewhere & (blocks.pins[DISK][rows] == 0)
    unfilled = swaps.lose(rows[~kept])
    # Of these, some hung on what is lost.
    kept_rows = rows[kept & blocks.indexed[rows]]
    memory.replicas.drop(DISK, kept_rows[::-1])
    # Which stays in the memory tiers because it is used, and not because anybody wants it, is not.
    kept_rows = kept_rows[~blocks.unwanted[kept_rows]]
    blocks.to_disk[kept_rows], blocks.undecided[kept_rows] = True, False
    at_hand = blocks.valid[CPU][kept_rows]
    links.ask_down(WRITE, kept_rows[at_hand])
    links.ask_down(COPY, kept_rows[~at_hand])
    # Last: who goes on takes frames, at the cost of what has another copy.
    swaps.go_without(unfilled)


def stored_rows(memory: Memory, keys: Iterable[StoredKey]) -> Rows:
    """Of these keys the blocks that can be found and have a valid copy on disk."""
    found = [memory.prefix.find(domain_id(key.namespace, key.tenant), key.key) for key in keys]
    rows = np.unique(np.array([row for row in found if row is not None], np.intp))
    stored: Rows = rows[memory.blocks.valid[DISK][rows]]
    return stored
