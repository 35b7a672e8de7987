"""The records of a journal: what a run was made of, and each event with what came of it.

Plain frozen records like the events and effects in them; `codec.py` knows their bytes.
"""

from msgspec import Struct

from kvstore.core.config import StoreConfig
from kvstore.core.effects import Effects
from kvstore.core.errors import KVStoreError
from kvstore.core.events import Event

__all__ = [
    "FORMAT",
    "Entry",
    "Failure",
    "Heading",
    "Outcome",
    "Policy",
    "Record",
    "Refusal",
    "outcome_of",
]

# Goes up whenever what was written before would be read wrongly.
FORMAT = 2

TEXT_CHARACTERS_MAX = 1_000


class Policy(Struct, frozen=True, kw_only=True):
    """A policy's class by name, and the numbers it was made with."""

    name: str
    parameters: tuple[tuple[str, float], ...] = ()


class Heading(Struct, frozen=True, kw_only=True):
    """The same in every segment of a run, but for `first_entry`: 1 where the run begins."""

    format: int
    build: str
    store_epoch: int
    first_entry: int
    # The beginning of the run on the store's clock, and on the wall in seconds since 1970 (0: no wall).
    start_time: float
    start_wall: float
    config: StoreConfig
    eviction: Policy
    swap: Policy


class Refusal(Struct, frozen=True, kw_only=True):
    """Refused, nothing was changed. The text is for people; a later version may word it otherwise."""

    reason: str
    text: str


class Failure(Struct, frozen=True, kw_only=True):
    """A bug: the store stopped at this event. `kind` is the exception's name."""

    kind: str
    text: str


Outcome = Effects | Refusal | Failure


class Entry(Struct, frozen=True, kw_only=True):
    """One event that entered `Store.handle`. Numbers count from 1, without a gap."""

    number: int
    event: Event
    outcome: Outcome


Record = Heading | Entry


def outcome_of(result: Effects | Exception) -> Outcome:
    if isinstance(result, Effects):
        return result
    text = str(result)[:TEXT_CHARACTERS_MAX].encode(errors="replace").decode()
    if isinstance(result, KVStoreError):
        return Refusal(reason=result.reason, text=text)
    return Failure(kind=type(result).__name__, text=text)
