"""What the store tells of itself: frames by tier, engines and what they hold back."""

from msgspec import Struct

from kvstore.core.types import EngineId, EngineState, Pressure, Revision, Tier, Urgency

__all__ = ["EngineUsage", "LaneUsage", "TierUsage", "Usage"]


class TierUsage(Struct, frozen=True, kw_only=True, gc=False):
    """Frames of one tier. `cached`: valid and referred to by no sequence; `late`: a read that did not
    end in time may still fill them. Counters since the start."""

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
    # Not brought there, though it was wished for; on disk also: forgotten before they came there.
    blocks_shed: int = 0


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


class Usage(Struct, frozen=True, kw_only=True, gc=False):
    revision: Revision
    tiers: tuple[TierUsage, ...]
    engines: tuple[EngineUsage, ...]
    lanes: tuple[LaneUsage, ...] = ()
