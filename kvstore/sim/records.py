"""What a run writes down as it goes, for the story of a failure (`story.py`)."""

from dataclasses import dataclass

from kvstore.core.effects import Effects, Transfer
from kvstore.core.events import Event
from kvstore.sim.shadow import Failed
from kvstore.sim.work import Work

__all__ = ["Executed", "Handled", "Happened", "Log", "Moved", "Record"]


@dataclass(slots=True)
class Handled:
    """An event and what came of it; `effects` is None while it is being handled, and if it failed."""

    time: float
    event: Event
    effects: Effects | None = None


@dataclass(frozen=True, slots=True)
class Executed:
    """A kernel has run."""

    time: float
    engine: int
    step: int
    work: Work


@dataclass(frozen=True, slots=True)
class Moved:
    """The bytes of a transfer have moved on one rank; on disk, on all of them."""

    time: float
    transfer: Transfer
    rank: int
    failed: Failed


@dataclass(frozen=True, slots=True)
class Happened:
    """What came from outside: a death, a crash, a full disk."""

    time: float
    what: str


Record = Handled | Executed | Moved | Happened
Log = list[Record]
