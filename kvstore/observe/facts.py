"""What a story is made of: facts, the blocks they tell of, and who wants to hear which.

What a frame holds is worked out from the journal alone, so at the start of a part whose beginning is
lost it is unknown, until something tells.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from kvstore.core.types import BlockKey, EngineId, Frame, SequenceId, Tier

__all__ = ["Content", "Fact", "Held", "Place", "Ref"]

NO_KEY = BlockKey(b"")


class Ref(NamedTuple):
    """A sequence: its id is only its engine's."""

    engine: EngineId
    sequence: SequenceId


class Place(NamedTuple):
    tier: Tier
    frame: Frame


@dataclass(slots=True, eq=False)
class Content:
    """What one block holds; the same object in each place that has a copy of it."""

    # Empty until it is committed or was found by its key.
    key: BlockKey = NO_KEY
    # Others can find it.
    published: bool = False
    # In whose tables it stands, and for which sessions it was used.
    sequences: set[Ref] = field(default_factory=set)
    sessions: set[str] = field(default_factory=set)


class Held(NamedTuple):
    """A block in a fact: where it is or goes, if it is told."""

    content: Content
    source: Place | None = None
    target: Place | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One thing that happened. Concerns the sequences and sessions named, and those of its blocks."""

    text: str
    blocks: tuple[Held, ...] = ()
    sequences: frozenset[Ref] = frozenset()
    sessions: frozenset[str] = frozenset()
    # The end of the store, and limits that are set, are part of every story.
    always: bool = False
