"""What must be true of a store between any two events, derived again from the ground up.

For tests, the simulator and the replayer: it looks at everything and takes its time. Each
rule raises `CheckFailed` with the first thing that is wrong.
"""

from collections import Counter

import numpy as np

from kvstore.core.blocks import NO_FRAME, NO_ROW
from kvstore.core.engines import Engine, Release
from kvstore.core.errors import check
from kvstore.core.sequences import Sequence
from kvstore.core.store import Store
from kvstore.core.types import (
    READ,
    WRITE,
    BlockKey,
    DomainId,
    NamespaceId,
    Rows,
    SequenceState,
    TenantId,
    Tier,
    Urgency,
    domain_parts,
)
from kvstore.core.watermarks import MARKED_TIERS

__all__ = ["Found", "check_invariants", "found_by_tier"]

# A block as it is told to those who watch.
Found = tuple[Tier, NamespaceId, TenantId, BlockKey]


def check_invariants(store: Store) -> None:
    _check_frames(store)
    _check_shares(store)
    _check_references(store)
    _check_busy(store)
    _check_pins(store)
    _check_index(store)
    _check_copies(store)
    _check_unwanted(store)
    _check_sequences(store)
    _check_sessions(store)
    _check_retained(store)
    _check_lanes(store)
    with store.memory.eviction.looking():
        _check_eviction_order(store)
        _check_lacking(store)
    store.memory.regret.check_bounds()


def found_by_tier(store: Store) -> set[Found]:
    """The index by tier, for those who compare theirs with it."""
    valid = store.memory.blocks.valid
    return {
        (tier, *domain_parts(domain), key)
        for (domain, key), row in store.memory.prefix.entries()
        for tier in Tier
        if valid[tier][row]
    }


def _engines(store: Store) -> list[Engine]:
    return list(store.membership.engines.values())


def _sequences(store: Store) -> list[Sequence]:
    return [sequence for engine in _engines(store) for sequence in engine.sequences.values()]


def _check_frames(store: Store) -> None:
    """Every frame is free or owned by one block, and that block knows."""
    blocks = store.memory.blocks
    for tier, pool in zip(Tier, store.memory.pools, strict=True):
        owned = np.flatnonzero(pool.row != NO_ROW)
        nobodys = pool.free_count + pool.withheld_count
        check(owned.size + nobodys == pool.frame_count, f"{tier.name}: frames were lost")
        check((blocks.frame[tier][pool.row[owned]] == owned).all(), f"{tier.name}: owner and frame differ")
        count = int((blocks.frame[tier] != NO_FRAME).sum())
        check(count == owned.size, f"{tier.name}: a block has a frame it does not own")
        check(not (blocks.valid[tier] & (blocks.frame[tier] == NO_FRAME)).any(), "valid without a frame")
        late = store.links.late.frames() if tier is Tier.CPU else []
        check(len(late) == pool.withheld_count, f"{tier.name}: frames are withheld for nothing")
        check((pool.row[late] == NO_ROW).all(), f"{tier.name}: a late frame is a block's")
    nowhere = (np.stack(blocks.frame) == NO_FRAME).all(axis=0)
    check(not (blocks.taken & nowhere).any(), "a block without a frame was not given back")
    check(not (~blocks.taken & ~nowhere).any(), "a free block has a frame")
    check(int(blocks.taken.sum()) + blocks.free_count == blocks.capacity, "block rows were lost")


def _check_shares(store: Store) -> None:
    """Whose each frame is."""
    blocks, shares = store.memory.blocks, store.memory.shares
    for tier in Tier:
        rows = np.flatnonzero(blocks.frame[tier] != NO_FRAME)
        counted = np.bincount(shares.places(rows), minlength=shares.used[tier].size)
        wrong = shares.are_shared and (counted != shares.used[tier]).any()
        check(not wrong, f"{tier.name}: frames are counted for the wrong tenant")


def _check_references(store: Store) -> None:
    """References are those of sequences, fences and quarantines, and no others."""
    live: Counter[int] = Counter()
    limbo: Counter[int] = Counter()
    claims: Counter[int] = Counter()
    for sequence in _sequences(store):
        claims.update(sequence.claimed)
        leaving = sequence.state is SequenceState.SWAPPING_OUT or sequence.cancelled
        if sequence.state is not SequenceState.SWAPPED:
            (limbo if leaving else live).update(sequence.rows)
    for engine in _engines(store):
        for fences, counter in ((engine.fences, limbo), (engine.quarantine, live)):
            for fence in fences:
                if isinstance(fence, Release):
                    counter.update(fence.rows.tolist())
    blocks = store.memory.blocks
    for name, table, counted in (
        ("held", blocks.refs - blocks.limbo, live),
        ("limbo", blocks.limbo, limbo),
        ("claims", blocks.claims, claims),
    ):
        check(dict(counted) == _nonzero(table), f"{name} references are not those that exist")


def _check_busy(store: Store) -> None:
    """What pressure goes by without a look at the frames."""
    blocks = store.memory.blocks
    used = np.flatnonzero(blocks.refs)
    check(blocks.has_frame(Tier.GPU, used).all(), "a block is referred to on the GPU and has no frame there")
    for tier in MARKED_TIERS:
        least, most = store.gauge.busy_bounds(tier)
        check(
            least <= store.gauge.count_busy(tier) <= most,
            f"{tier.name}: busy frames are not between their bounds",
        )


def _check_pins(store: Store) -> None:
    blocks = store.memory.blocks
    pins: dict[Tier, Counter[int]] = {tier: Counter() for tier in Tier}
    for link, rows in store.links.transfers.under_way.values():
        for tier in link:
            pins[tier].update(rows.tolist())
    for tier in Tier:
        check(dict(pins[tier]) == _nonzero(blocks.pins[tier]), f"{tier.name}: pins without a transfer")


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
    check(dict(counted) == _nonzero(table), "children are counted wrong")


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


def _check_sequences(store: Store) -> None:
    blocks = store.memory.blocks
    waiting = store.swaps.waiting.rows()
    for sequence in _sequences(store):
        rows = np.array(sequence.rows, np.intp)
        check(np.unique(rows).size == rows.size, "a table names a block twice")
        check(
            sequence.waits == len(waiting.get(sequence, ())), "a sequence waits for other rows than it says"
        )
        match sequence.state:
            case SequenceState.RESIDENT:
                check(blocks.valid[Tier.GPU][rows].all(), "a resident block is not on the GPU")
                check(not sequence.waits, "a resident sequence waits")
            case SequenceState.SWAPPED:
                below = blocks.valid[Tier.CPU][rows] | blocks.valid[Tier.DISK][rows]
                check(below.all(), "a swapped block has no copy below")
            case SequenceState.DROPPED:
                check(not rows.size and not sequence.claimed, "a dropped sequence holds blocks")
            case SequenceState.SWAPPING_IN:
                check(bool(sequence.waits), "a sequence comes in and waits for nothing")
                check((blocks.frame[Tier.GPU][rows] != NO_FRAME).all(), "a block comes in without a frame")
            case SequenceState.SWAPPING_OUT:
                check(bool(sequence.waits) or not sequence.begun, "a sequence leaves and waits for nothing")
    check(not (waiting.keys() - set(_sequences(store))), "a sequence that is gone waits")


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


def _check_lanes(store: Store) -> None:
    """What somebody waits for is under way as soon as it could be; what is on its way down is in a lane."""
    blocks = store.memory.blocks
    for (link, urgency), lane in store.links.lanes.items():
        name = f"{link[0].name} to {link[1].name}, {urgency.name}"
        count = sum(other is lane for other in store.links.transfers.lanes_under_way())
        check(lane.under_way == count, f"{name}: transfers under way are counted wrong")
        check(lane.under_way <= lane.under_way_max, f"{name}: too many transfers are under way")
        check(lane.is_in_step, f"{name}: a row stands in no queue, or in that of another tenant")
        if urgency in (Urgency.ASKED, Urgency.NEEDED):
            check(not lane.may_begin, f"{name}: what waits could be begun")
            alive = not lane.rows or store.links.transfers.are_under_way
            check(alive, f"{name}: somebody waits, and nothing is under way that could make room")
        if urgency is Urgency.BACKGROUND:
            queued = np.flatnonzero(blocks.queued[link[0]]).tolist()
            check(lane.rows.keys() >= set(queued), f"{name}: a block is on its way down, and in no lane")

    moving = store.links.transfers.under_way.values()
    known = {row for link, rows in moving if link == READ for row in rows.tolist()}
    for (_, urgency), lane in store.links.lanes.items():
        known |= lane.rows.keys() if urgency is Urgency.PREFETCH else set()
    check(store.links.ahead.wishes.keys() <= known, "a block that is to come ahead is in no lane")


def _check_lacking(store: Store) -> None:
    """What is known not to be there would not be found."""
    memory = store.memory
    for search in memory.lacking.searches():
        held = np.frombuffer(search.held, np.intp)
        memory.blocks.hold(held)
        found = memory.room.find(search).size
        memory.blocks.unhold(held)
        check(found < search.wanted, f"{search.tier.name}: room is there that was taken to be lacking")


def _all(rows: Rows) -> Rows:
    return rows


def _nonzero(table: np.ndarray) -> dict[int, int]:
    rows = np.flatnonzero(table)
    return dict(zip(rows.tolist(), table[rows].tolist(), strict=True))
