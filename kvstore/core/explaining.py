"""What was decided lately, as it is told to who asks: of a session, a sequence, an engine, or of all."""

from collections.abc import Iterator

from msgspec import Struct, structs

from kvstore.core.decisions import ANONYMOUS, KINDS, Decisions, Note, Party
from kvstore.core.membership import Membership
from kvstore.core.operations import Decision
from kvstore.core.sequences import session_owner
from kvstore.core.sessions import Sessions
from kvstore.core.types import EngineId, SequenceId

__all__ = ["DecisionQuery", "Explaining", "Told"]

# Sessions whose blocks a lot has, of most blocks first.
SESSIONS_TOLD = 8
NOBODY_NAMED: tuple[tuple[str, int], ...] = ()


class DecisionQuery(Struct, frozen=True, kw_only=True):
    """Which decisions: all that is named must hold. `before`: only those with a lower number; 0: all."""

    engine: EngineId = EngineId("")
    sequence: SequenceId = SequenceId(0)
    session: str = ""
    kind: str = ""
    before: int = 0


class Told(Struct, frozen=True, kw_only=True):
    """A decision as it is told. `number` counts them. Of lots that are alike it is the first one of `lots`,
    the last of which was at `until`; `room_for`: sequences for which room was made, the first of them;
    `blocks_of`: sessions with how many blocks of theirs, as far as they are known by name."""

    number: int
    decision: Decision
    lots: int
    until: float
    room_for: tuple[Party, ...]
    blocks_of: tuple[tuple[str, int], ...]


class Explaining:
    """Changes nothing."""

    def __init__(self, decisions: Decisions, membership: Membership, sessions: Sessions) -> None:
        self._decisions = decisions
        self._membership = membership
        self._sessions = sessions

    def find(self, query: DecisionQuery) -> Iterator[Told]:
        """The latest first."""
        owners = self._owners(query)
        for note in sorted(self._notes(query), key=lambda note: -note.number):
            if (not query.before or note.number < query.before) and _concerns(query, note, owners):
                yield self._told(query, note, owners)

    def count(self, query: DecisionQuery) -> int:
        owners = self._owners(query)
        return sum(_concerns(query, note, owners) for note in self._notes(query))

    def knows(self, query: DecisionQuery) -> bool:
        """Whether there is, or anything was decided of, all that is named."""
        engines = self._membership.engines
        if query.engine and not self.engines(query.engine):
            return False
        asked = [engines[id] for id in engines if query.engine in ("", id)]
        sequences = [sequence for engine in asked for sequence in engine.sequences.values()]
        if query.session and any(name == query.session for _, name in self._sessions.names()):
            return not query.sequence
        there = any(
            query.sequence in (0, sequence.id) and query.session in ("", sequence.session)
            for sequence in sequences
        )
        named = query.sequence or query.session
        return not named or there or self.count(structs.replace(query, kind="", before=0)) > 0

    def engines(self, beginning: str) -> list[EngineId]:
        """Whose ids begin so, of those that are there and those of which anything was decided."""
        notes = [note for notes in self._decisions.notes.values() for note in notes]
        found = {note.decision.engine for note in notes} | set(self._membership.engines)
        found |= {party.engine for note in notes for party in note.parties}
        return sorted(engine for engine in found if engine and engine.startswith(beginning))

    def _notes(self, query: DecisionQuery) -> Iterator[Note]:
        return (note for kind in KINDS if query.kind in ("", kind) for note in self._decisions.notes[kind])

    def _owners(self, query: DecisionQuery) -> list[int]:
        if not query.session:
            return []
        return [session_owner(domain, query.session) for domain in sorted(self._decisions.domains)]

    def _told(self, query: DecisionQuery, note: Note, owners: list[int]) -> Told:
        decision, blocks_of = note.decision, NOBODY_NAMED
        if note.owners.size:
            # Lone sequences have negative numbers.
            by_owner = note.by_owner()
            owned = sum(count for owner, count in by_owner.items() if owner > ANONYMOUS)
            figures = [*note.counts.items(), ("blocks_of_sessions", float(owned))]
            if mine := sum(by_owner.get(owner, 0) for owner in owners):
                figures.append(("blocks_of_this_session", float(mine)))
                decision = structs.replace(decision, session=query.session)
            decision = structs.replace(decision, inputs=(*figures, *decision.inputs))
            blocks_of = self._blocks_of(by_owner)
        return Told(
            number=note.number,
            decision=decision,
            lots=note.lots,
            until=note.until,
            room_for=tuple(note.parties),
            blocks_of=blocks_of,
        )

    def _blocks_of(self, by_owner: dict[int, int]) -> tuple[tuple[str, int], ...]:
        names = self._decisions.names
        named = [(names[owner], count) for owner, count in by_owner.items() if owner in names]
        return tuple(sorted(named, key=lambda each: (-each[1], each[0]))[:SESSIONS_TOLD])


def _concerns(query: DecisionQuery, note: Note, owners: list[int]) -> bool:
    """What is asked of is the decision's, or room was made for it, or blocks of it are in the lot."""
    decision = note.decision
    if query.engine or query.sequence:
        whom = [
            (decision.engine, decision.sequence),
            *((each.engine, each.sequence) for each in note.parties),
        ]
        if not any(query.engine in ("", engine) and query.sequence in (0, id) for engine, id in whom):
            return False
    if not query.session or query.session == decision.session:
        return True
    if any(party.session == query.session for party in note.parties):
        return True
    return bool(note.owners.size) and not note.by_owner().keys().isdisjoint(owners)
