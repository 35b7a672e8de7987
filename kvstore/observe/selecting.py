"""Whose story is told: `block=…`, `sequence=…` or `session=…`."""

import re
from dataclasses import dataclass
from typing import Protocol

from kvstore.core.errors import JournalInvalid
from kvstore.core.types import Frame, Tier
from kvstore.observe.facts import Fact, Held, Place, Ref

__all__ = ["Selector", "parse_selector"]

REMEDY = (
    "block=KEY (the first digits of its key in hex), block=TIER:FRAME, "
    "sequence=ID, sequence=ENGINE:ID (the first or last digits of its id) or session=ID"
)
PLACE = re.compile(r"(gpu|cpu|disk):([0-9]+)", re.IGNORECASE)
KEY = re.compile(r"[0-9a-f]{1,64}", re.IGNORECASE)
SEQUENCE = re.compile(r"(?:([0-9a-f-]{1,36}):)?([0-9]+)", re.IGNORECASE)


class Selector(Protocol):
    def concerns(self, fact: Fact) -> bool:
        """The fact is about it, with all its blocks."""

    def holds(self, fact: Fact, block: Held) -> bool:
        """The fact is about others, but this block of it is of interest all the same."""


@dataclass(frozen=True, slots=True)
class ByKey:
    prefix: str

    def concerns(self, fact: Fact) -> bool:
        return False

    def holds(self, fact: Fact, block: Held) -> bool:
        return block.content.key != b"" and block.content.key.hex().startswith(self.prefix)


@dataclass(frozen=True, slots=True)
class ByPlace:
    place: Place

    def concerns(self, fact: Fact) -> bool:
        return False

    def holds(self, fact: Fact, block: Held) -> bool:
        return self.place in (block.source, block.target)


@dataclass(frozen=True, slots=True)
class BySequence:
    engine: str
    sequence: int

    def concerns(self, fact: Fact) -> bool:
        return any(map(self._is, fact.sequences))

    def holds(self, fact: Fact, block: Held) -> bool:
        return not fact.sequences and any(map(self._is, block.content.sequences))

    def _is(self, ref: Ref) -> bool:
        named = ref.engine.startswith(self.engine) or ref.engine.endswith(self.engine)
        return ref.sequence == self.sequence and named


@dataclass(frozen=True, slots=True)
class BySession:
    session: str

    def concerns(self, fact: Fact) -> bool:
        return self.session in fact.sessions

    def holds(self, fact: Fact, block: Held) -> bool:
        return not fact.sequences and self.session in block.content.sessions


def parse_selector(text: str) -> Selector:
    kind, _, value = text.partition("=")
    if kind == "session" and value:
        return BySession(value)
    if kind == "sequence" and (match := SEQUENCE.fullmatch(value)):
        return BySequence((match[1] or "").lower(), int(match[2]))
    if kind == "block" and (match := PLACE.fullmatch(value)):
        return ByPlace(Place(Tier[match[1].upper()], Frame(int(match[2]))))
    if kind == "block" and KEY.fullmatch(value):
        return ByKey(value.lower())
    raise JournalInvalid("nobody's story", field="--story", value=text, remedy=REMEDY)
