"""What can be found: the index, copies in the tiers, what sessions and who retains keep of it, and the order
in which it goes.
"""

from collections import Counter

import numpy as np

from kvstore.core.blocks import NO_FRAME, NO_ROW
from kvstore.core.errors import check
from kvstore.core.invariants_frames import nonzero
from kvstore.core.store import Store
from kvstore.core.types import WRITE, BlockKey, DomainId, Rows, Tier, Urgency

__all__ = ["check_cache"]


def check_cache(store: Store) -> None:
    _check_index(store)
    _check_copies(store)
    _check_unwanted(store)
    _check_retained(store)
    _check_sessions(store)
    _check_eviction_order(store)
    store.memory.regret.check_bounds()


def _check_index(store: Store) -> None:
    """Parents are indexed, children are counted, and each key leads to its block."""
    blocks = store.memory.blocks
    indexed = np.flatnonzero(blocks.indexed)
    known = dict(store.memory.prefix.entries())
    check(len(known) == indexed.size, "index and block table differ")
    for row in indexed.tolist():
        entry = (DomainId(int(blocks.domain[row])), BlockKey(blocks.key[row]))
        check(known.get(entry) == row, "a key leads elsewhere")
    parents = blocks.parent[indexed]
    check(blocks.indexed[parents[parents != NO_ROW]].all(), "a parent is not indexed")
    depths = np.where(parents == NO_ROW, 0, blocks.depth[parents] + 1)
    check((blocks.depth[indexed] == depths).all(), "a block hangs on one that is not right above it")
    _check_children(blocks.children, parents)
    for tier in Tier:
        there = blocks.frame[tier][indexed] != NO_FRAME
        _check_children(blocks.children_in[tier], parents[there])


def _check_children(table: np.ndarray, parents: np.ndarray) -> None:
    counted = Counter(parents[parents != NO_ROW].tolist())
    check(dict(counted) == nonzero(table), "children are counted wrong")


def _check_copies(store: Store) -> None:
    blocks = store.memory.blocks
    indexed = np.flatnonzero(blocks.indexed)
    check(np.stack(blocks.valid)[:, indexed].any(axis=0).all(), "an indexed block has no valid copy")
    undecided = blocks.undecided
    check(not (undecided & (blocks.to_disk | ~blocks.indexed)).any(), "a block's way to disk is asked twice")
    check(not (blocks.unwanted & (blocks.to_disk | undecided)).any(), "what is to go is wanted on disk")
    on_disk = np.flatnonzero(blocks.valid[Tier.DISK] & blocks.indexed)
    parents = blocks.parent[on_disk]
    check(blocks.valid[Tier.DISK][parents[parents != NO_ROW]].all(), "the disk is not prefix-closed")
    if not store.links.lanes[WRITE, Urgency.BACKGROUND].must_empty:
        on_the_way = np.flatnonzero((blocks.frame[Tier.DISK] != NO_FRAME) & blocks.indexed)
        parents = blocks.parent[on_the_way]
        there = blocks.frame[Tier.DISK][parents[parents != NO_ROW]] != NO_FRAME
        check(there.all(), "a block is on its way to disk, and what it hangs on is not")
    frame, valid, pins = np.stack(blocks.frame), np.stack(blocks.valid), np.stack(blocks.pins)
    unpinned = (frame != NO_FRAME) & ~valid & (pins == 0)
    check(not unpinned[Tier.DISK].any(), "a disk frame waits to be filled by nobody")
    check((blocks.claims[unpinned[Tier.CPU]] > 0).all(), "a CPU frame waits to be filled by nobody")
    used = blocks.refs > 0
    check(used[unpinned[Tier.GPU]].all(), "a GPU frame waits to be filled by nobody")
    private = blocks.taken & ~blocks.indexed & ~used & (blocks.claims == 0) & (pins == 0).all(axis=0)
    check(not private.any(), "a private block is kept for nobody")


def _check_unwanted(store: Store) -> None:
    """What is to go has gone, unless something holds it."""
    blocks, room = store.memory.blocks, store.memory.room
    unwanted = np.flatnonzero(blocks.unwanted)
    check(blocks.indexed[unwanted].all(), "a block is to go that can't be found")
    check(np.isin(unwanted, store.memory.unwanted).all(), "nobody looks after a block that is to go")
    tails_first = unwanted[np.argsort(-blocks.depth[unwanted], kind="stable")]
    for tier in Tier:
        check(
            not room.going.removable(tier, tails_first).size,
            f"{tier.name}: nothing holds a block that is to go",
        )


def _check_retained(store: Store) -> None:
    blocks, retained = store.memory.blocks, store.memory.retained
    rows = retained.rows()
    check(retained.has_any == bool(rows.size), "whether anything is retained is not known")
    check(blocks.indexed[rows].all(), "a block is retained that can't be found")
    above = blocks.parent[rows]
    check(retained.is_retained(above[above != NO_ROW]).all(), "a block is retained, and not what it hangs on")
    for tenant in store.config.tenants.values():
        most = store.config.retained_blocks_max
        check(retained.count_of(tenant) <= most, "a tenant has too many blocks retained")


def _check_sessions(store: Store) -> None:
    sessions = store.sessions
    kept = [session for name in sessions.names() if (session := sessions.find(*name)) is not None]
    check(all(session.keys for session in kept), "a session has no block")
    check(sum(len(session.keys) for session in kept) == sessions.key_count, "keys are counted wrong")
    check(sessions.key_count <= store.config.session_keys_max, "sessions name too many keys")


def _check_eviction_order(store: Store) -> None:
    """The policy knows every cached block, so none is lost to eviction."""
    blocks, policy = store.memory.blocks, store.memory.eviction
    for tier in Tier:
        cached = blocks.indexed & blocks.valid[tier]
        if tier is Tier.GPU:
            cached &= blocks.refs == 0
        ordered = policy.victims(tier, blocks.capacity, _all)
        check(
            sorted(ordered.tolist()) == np.flatnonzero(cached).tolist(),
            f"{tier.name}: cached blocks are not in order",
        )


def _all(rows: Rows) -> Rows:
    return rows
