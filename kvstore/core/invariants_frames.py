"""Whose each frame is, and who refers to each block: all is somebody's, and nothing counts twice."""

from collections import Counter

import numpy as np

from kvstore.core.blocks import NO_FRAME, NO_ROW
from kvstore.core.engines import Release
from kvstore.core.errors import check
from kvstore.core.sequences import Sequence
from kvstore.core.store import Store
from kvstore.core.types import SequenceState, Tier
from kvstore.core.watermarks import MARKED_TIERS

__all__ = ["check_frames", "nonzero", "sequences_of"]


def check_frames(store: Store) -> None:
    _check_frames(store)
    _check_shares(store)
    _check_references(store)
    _check_busy(store)
    _check_pins(store)


def sequences_of(store: Store) -> list[Sequence]:
    engines = store.membership.engines.values()
    return [sequence for engine in engines for sequence in engine.sequences.values()]


def nonzero(table: np.ndarray) -> dict[int, int]:
    rows = np.flatnonzero(table)
    return dict(zip(rows.tolist(), table[rows].tolist(), strict=True))


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
    for sequence in sequences_of(store):
        claims.update(sequence.claimed)
        leaving = sequence.state is SequenceState.SWAPPING_OUT or sequence.cancelled
        if sequence.state is not SequenceState.SWAPPED:
            (limbo if leaving else live).update(sequence.rows)
    for engine in store.membership.engines.values():
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
        check(dict(counted) == nonzero(table), f"{name} references are not those that exist")


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
        check(dict(pins[tier]) == nonzero(blocks.pins[tier]), f"{tier.name}: pins without a transfer")
