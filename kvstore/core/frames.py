"""Who gets frames: free ones, and those of cached blocks that go for it. What may go is said in `room.py`."""

from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct

from kvstore.core.blocks import NO_ROWS
from kvstore.core.decisions import Lot
from kvstore.core.lacking import Search
from kvstore.core.memory import Memory
from kvstore.core.ports import Figures
from kvstore.core.sequences import Sequence as TokenSequence
from kvstore.core.shares import NOBODY
from kvstore.core.tree import with_descendants
from kvstore.core.types import CPU, DISK, GPU, DomainId, Rows, Tier

__all__ = ["Purpose", "clear_passage", "grant_frames", "make_room"]

TIER_NAMES = ("the GPU", "the CPU tier", "disk")


class Purpose(Struct, frozen=True):
    """What frames are for, in words, and for which sequences; `of_many`: for whatever sequences there are,
    a frame or two each, again and again."""

    reason: str
    sequences: list[TokenSequence] | tuple[TokenSequence, ...] = ()
    of_many: bool = False


def grant_frames(
    memory: Memory,
    held: Rows,
    fresh: int,
    purpose: Callable[[], Purpose],
    spare: int = 0,
    domains: Sequence[tuple[DomainId, int]] = (),
) -> Rows | None:
    """Holds the blocks `held` on the GPU and gives `fresh` new ones, all or nothing.

    Held blocks without a GPU frame get one, to be filled. `spare` more frames must be left
    over for those who stand ahead in the queue. `domains`: whose the new blocks are, with how many of
    each; only where tenants share, and for several at once there are only frames that are free: from
    whom room is taken depends on who wants it. `purpose`: asked for where something has to go for it.
    Returns the new blocks, or None.
    """
    domain = domains[0][0] if domains else NOBODY
    is_one = not domains or memory.shares.are_ones(domains)
    if not is_one and memory.pools[GPU].free_count < held.size + fresh + spare:
        return None
    if not held.size:
        there_is_room = make_room(memory, GPU, fresh, purpose, spare, domain)
        return _take_fresh(memory, fresh, domains) if there_is_room else None
    blocks = memory.blocks
    blocks.hold(held)
    # What several ask for stands in it as often, and needs one frame; a policy is told of it once.
    once = blocks.distinct(held)
    lacking = once[~blocks.has_frame(GPU, once)]
    if not make_room(memory, GPU, lacking.size + fresh, purpose, spare, domain, held=held):
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
    purpose: Callable[[], Purpose],
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
        if tier is GPU and not in_background and memory.forget(memory.room.stuck(GPU)).size:
            return make_room(memory, tier, count, purpose, spare, domain, held=held)
        memory.lacking.note(search, len(victims))
        return False
    if taken:
        _evict_for(memory, wanted, tier, victims[:taken], purpose())
    return True


def clear_passage(memory: Memory, count: int) -> bool:
    """Frees CPU frames for so many reads that somebody waits for, where only what can't leave by itself is
    in their way: of what is stuck there, that of least worth is forgotten, with all that hangs on it.
    Returns whether there was any."""
    is_stuck = np.zeros(memory.blocks.capacity, np.bool_)
    is_stuck[memory.room.stuck(CPU)] = True
    rows = memory.eviction.victims(CPU, count, lambda rows: rows[is_stuck[rows]])
    doomed = with_descendants(memory.blocks, rows)
    memory.blocks_shed[DISK] += int(np.count_nonzero(memory.blocks.to_disk[doomed]))
    return memory.forget(doomed).size > 0


def _evict_for(memory: Memory, wanted: int, tier: Tier, rows: Rows, purpose: Purpose) -> None:
    """And remembers why, for who asks."""
    owners, free = memory.blocks.owner[rows], memory.pools[tier].free_count
    tenants = memory.shares.tenants_of(rows)
    memory.regret.note(tier, rows)
    lost = memory.evict(tier, rows)
    lot = Lot(
        kind="evict",
        chosen=f"from {TIER_NAMES[tier]} by {type(memory.eviction).__name__}",
        reason=purpose.reason,
        tenants=tenants,
        counts=(("blocks", float(rows.size)), ("blocks_lost", float(lost))),
        sequences=purpose.sequences,
        of_many=purpose.of_many,
    )

    def figures() -> Figures:
        at_hand = (
            ("frames_free", float(free)),
            ("frames_lacking", float(wanted)),
            ("frames_spare", float(wanted - rows.size)),
        )
        return (*at_hand, *memory.eviction.told(tier, rows))

    memory.decisions.note_lot(memory.now, lot, owners, figures)
