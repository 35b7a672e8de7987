"""What the store tells of itself: frames by tier, engines and what they hold back."""

from dataclasses import dataclass

from kvstore.core.types import EngineId, EngineState, Pressure, Revision, Tier

__all__ = ["EngineUsage", "TierUsage", "Usage"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TierUsage:
    """Frames of one tier. `cached`: valid and referred to by no sequence. Counters since the start."""

    tier: Tier
    frames_total: int
    frames_free: int
    frames_cached: int
    frames_pinned: int
    frames_quarantined: int
    pressure: Pressure
    blocks_moved_in: int
    blocks_failed: int
    blocks_evicted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineUsage:
    """`pids` are those of the open tethers."""

    engine: EngineId
    state: EngineState
    lease_expire_time: float
    build: str
    sequences: int
    frames_quarantined: int
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    revision: Revision
    tiers: tuple[TierUsage, ...]
    engines: tuple[EngineUsage, ...]
