"""Who gets frames: free ones, and those of cached blocks that go for it. What may go is said in `room.py`."""

from collections.abc import Sequence

import numpy as np

from kvstore.core.blocks import NO_ROWS
from kvstore.core.lacking import Search
from kvstore.core.memory import Memory
from kvstore.core.operations import Decision
from kvstore.core.shares import NOBODY
from kvstore.core.types import CPU, DISK, GPU, DomainId, Rows, Tier

__all__ = ["grant_frames", "make_room"]

TIER_NAMES = ("the GPU", "the CPU tier", "disk")
# Why room has to be made, in words.
WHY_ROOM = {
    GPU: "sequences need GPU frames",
    CPU: "a sequence is swapped out, or blocks from disk pass through on their way up",
    DISK: "blocks are written",
}
WHY_BACKGROUND = "cached blocks get a copy here"


def grant_frames(
    memory: Memory, held: Rows, fresh: int, spare: int = 0, domains: Sequence[tuple[DomainId, int]] = ()
) -> Rows | None:
    """Holds the blocks `held` on the GPU and gives `fresh` new ones, all or nothing.

    Held blocks without a GPU frame get one, to be filled. `spare` more frames must be left
    over for those who stand ahead in the queue. `domains`: whose the new blocks are, with how many of
    each; only where tenants share, and for several at once there are only frames that are free: from
    whom room is taken depends on who wants it. Returns the new blocks, or None.
    """
    domain = domains[0][0] if domains else NOBODY
    is_one = not domains or memory.shares.are_ones(domains)
    if not is_one and memory.pools[GPU].free_count < held.size + fresh + spare:
        return None
    if not held.size:
        return _take_fresh(memory, fresh, domains) if make_room(memory, GPU, fresh, spare, domain) else None
    blocks = memory.blocks
    blocks.hold(held)
    # What several ask for stands in it as often, and needs one frame; a policy is told of it once.
    once = blocks.distinct(held)
    lacking = once[~blocks.has_frame(GPU, once)]
    if not make_room(memory, GPU, lacking.size + fresh, spare, domain, held=held):
        blocks.unhold(held)
        return None
    memory.eviction.forget(GPU, once)
    if lacking.size:
        memory.replicas.add(GPU, lacking)
    return _take_fresh(memory, fresh, domains)


def _take_fresh(memory: Memory, count: int, domains: Sequence[tuple[DomainId, int]]) -> Rows:
    """New blocks with one reference and a frame each. There is room."""
    if not count:
        return NO_ROWS
    blocks = memory.blocks
    rows = blocks.take_rows(count)
    blocks.frame[GPU][rows] = memory.pools[GPU].take(rows)
    blocks.valid[GPU][rows] = True
    blocks.hold_first(rows)
    if memory.shares.are_shared:
        blocks.domain[rows] = np.repeat(*np.array(domains, np.int64).T)
        memory.shares.count(GPU, rows, 1)
    return rows


def make_room(
    memory: Memory,
    tier: Tier,
    count: int,
    spare: int = 0,
    domain: DomainId = NOBODY,
    *,
    in_background: bool = False,
    in_share: bool = False,
    held: Rows = NO_ROWS,
) -> bool:
    """Sees to `count` free frames, with `spare` more that are free or could be. All or nothing.

    For one tenant's `domain` nothing is taken that is another's by its share: in the background never,
    nor with `in_share`; else where nothing less would do. What is spared is said in `Room.find`.
    """
    free = memory.pools[tier].free_count
    if free >= count + spare:
        return True
    wanted, taken = count + spare - free, max(0, count - free)
    search = Search(tier, wanted, taken, domain, in_background, in_share, held.tobytes())
    if memory.lacking.knows(search):
        return False
    victims = memory.room.find(search)
    if len(victims) < wanted:
        if tier is GPU and not in_background and memory.forget(memory.room.stuck()).size:
            return make_room(memory, tier, count, spare, domain, held=held)
        memory.lacking.note(search, len(victims))
        return False
    if taken:
        _evict_for(memory, wanted, tier, victims[:taken], in_background=in_background)
    return True


def _evict_for(memory: Memory, wanted: int, tier: Tier, rows: Rows, *, in_background: bool) -> None:
    """And remembers why, for who asks."""
    owners, free = memory.blocks.owner[rows], memory.pools[tier].free_count
    tenant = memory.shares.tenant_of_all(rows)
    memory.regret.note(tier, rows)
    lost = memory.evict(tier, rows)
    decision = Decision(
        time=memory.now,
        kind="evict",
        chosen=f"from {TIER_NAMES[tier]} by {type(memory.eviction).__name__}",
        reason=WHY_BACKGROUND if in_background else WHY_ROOM[tier],
        tenant=tenant,
        inputs=(
            ("blocks", float(rows.size)),
            ("blocks_lost", float(lost)),
            ("frames_free", float(free)),
            ("frames_lacking", float(wanted)),
        ),
    )
    memory.decisions.note(decision, owners)
