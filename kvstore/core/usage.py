"""What the store tells of itself: frames by tier, and whose they are; engines and what they hold back."""

from msgspec import Struct

from kvstore.core.types import EngineId, EngineState, Pressure, Revision, Tier, Urgency

__all__ = [
    "EngineUsage",
    "LaneUsage",
    "SequenceUsage",
    "TenantFrames",
    "TenantUsage",
    "TierUsage",
    "Usage",
]


class TierUsage(Struct, frozen=True, kw_only=True, gc=False):
    """Frames of one tier. `cached`: valid and referred to by no sequence; `late`: a read that did not end in
    time may still fill them. Counters since the start.

    `used`: referred to by sequences. Of these, `limbo` were given up by all of them and wait for work to
    complete, and `idle` belong only to sequences that are resident and don't run.
    """

    tier: Tier
    frames_total: int
    frames_free: int
    frames_cached: int
    frames_pinned: int
    frames_quarantined: int
    frames_late: int = 0
    pressure: Pressure
    blocks_moved_in: int
    blocks_failed: int
    blocks_evicted: int
    frames_used: int = 0
    frames_limbo: int = 0
    frames_idle: int = 0
    # Not brought there, though it was wished for; on disk also: forgotten before they came there.
    blocks_shed: int = 0
    # Asked for, nowhere to be found, and what a tier twice as large would have had (`regret.py`).
    blocks_ghost_hit: int = 0


class LaneUsage(Struct, frozen=True, kw_only=True, gc=False):
    """What waits for a link, of one urgency, and how many transfers it has under way."""

    source: Tier
    target: Tier
    urgency: Urgency
    blocks_waiting: int
    transfers_under_way: int


class EngineUsage(Struct, frozen=True, kw_only=True, gc=False):
    """`pids` are those of the open tethers."""

    engine: EngineId
    state: EngineState
    lease_expire_time: float
    build: str
    sequences: int
    frames_quarantined: int
    pids: tuple[int, ...]


class SequenceUsage(Struct, frozen=True, kw_only=True, gc=False):
    """Sequences of all engines as they are, and how often they have moved since the start.

    `idle`: resident, and not running. `waiting`: they have a place in the queue for GPU frames. Swaps and
    drops are counted when they are taken on, those that the store did by itself too: `reliefs` of them.
    `drops_for_room` would have been swaps, had there been room below. Where it was weighed how much of what
    is below the GPU to load: so many came in with all of it, and so many with less.
    """

    resident: int = 0
    swapping_out: int = 0
    swapped: int = 0
    swapping_in: int = 0
    dropped: int = 0
    idle: int = 0
    waiting: int = 0
    swaps_out: int = 0
    swaps_in: int = 0
    drops: int = 0
    drops_for_room: int = 0
    reliefs: int = 0
    loads_whole: int = 0
    loads_cut: int = 0


class TenantFrames(Struct, frozen=True, kw_only=True, gc=False):
    """Of one tier. `taken`: by blocks of the tenant, cached ones and those on their way included.
    `guaranteed`: its share, which others don't take from it."""

    tier: Tier
    frames_taken: int
    frames_guaranteed: int


class TenantUsage(Struct, frozen=True, kw_only=True, gc=False):
    """The empty name is for all together whose blocks were found on disk, and who are named no more."""

    tenant: str
    frames: tuple[TenantFrames, ...]
    # Sequences that have a place in the queue for GPU frames.
    sequences_waiting: int


class Usage(Struct, frozen=True, kw_only=True, gc=False):
    revision: Revision
    tiers: tuple[TierUsage, ...]
    engines: tuple[EngineUsage, ...]
    sequences: SequenceUsage = SequenceUsage()
    lanes: tuple[LaneUsage, ...] = ()
    # None where there is one tenant, who has it all.
    tenants: tuple[TenantUsage, ...] = ()
    # Those that a next turn can go on from, and the block keys that they name.
    sessions: int = 0
    session_keys: int = 0
