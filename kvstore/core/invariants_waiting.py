"""Who waits, and for what: sequences on their way, blocks in lanes, room that is not there."""

import numpy as np

from kvstore.core.blocks import NO_FRAME
from kvstore.core.errors import check
from kvstore.core.invariants_frames import sequences_of
from kvstore.core.store import Store
from kvstore.core.types import READ, SequenceState, Tier, Urgency

__all__ = ["check_waiting"]


def check_waiting(store: Store) -> None:
    _check_sequences(store)
    _check_lanes(store)
    _check_lacking(store)


def _check_sequences(store: Store) -> None:
    blocks = store.memory.blocks
    waiting = store.swaps.waiting.rows()
    for sequence in sequences_of(store):
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
    check(not (waiting.keys() - set(sequences_of(store))), "a sequence that is gone waits")


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
