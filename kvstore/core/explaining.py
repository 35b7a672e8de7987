"""What was decided lately, as it is told to who asks: of a session, a sequence, an engine, tenant, or all."""

from collections.abc import Iterator

from msgspec import Struct, structs

from kvstore.core.decisions import ANONYMOUS, KINDS, Decisions, Note, Party
from kvstore.core.engines import Engine
from kvstore.core.membership import Membership
from kvstore.core.operations import Decision
from kvstore.core.sequences import session_owner
from kvstore.core.sessions import Sessions
from kvstore.core.shares import Shares
from kvstore.core.types import DomainId, EngineId, SequenceId

__all__ = ["BlocksOf", "DecisionQuery", "Explaining", "Told"]

# Sessions whose blocks a lot has, of most blocks first.
SESSIONS_TOLD = 8
NOBODY_NAMED: tuple["BlocksOf", ...] = ()


class DecisionQuery(Struct, frozen=True, kw_only=True):
    """Which decisions: all that is named must hold. `before`: only those with a lower number; 0: all."""

    engine: EngineId = EngineId("")
    sequence: SequenceId = SequenceId(0)
    session: str = ""
    tenant: str = ""
    kind: str = ""
    before: int = 0


class BlocksOf(Struct, frozen=True):
    """How many blocks of a lot are a session's."""

    domain: DomainId
    session: str
    blocks: int


class Told(Struct, frozen=True, kw_only=True):
    """A decision as it is told. `number` counts them. Of lots that are alike it is the first one of `lots`,
    the last of which was at `until`; `room_for`: sequences for which room was made, the first of them;
    `blocks_of`: sessions with how many blocks of theirs, as far as they are known by name; `tenants`: whose
    the blocks are, where they are several tenants'."""

    number: int
    decision: Decision
    lots: int
    until: float
    room_for: tuple[Party, ...]
    blocks_of: tuple[BlocksOf, ...]
    tenants: tuple[str, ...]


class _Asked(Struct, frozen=True):
    """A query, and what follows from it. `tenant`: empty where any will do, or where there is only one;
    `domains`: where its session is looked for, and `owners`: whose blocks are that session's."""

    query: DecisionQuery
    tenant: str
    domains: frozenset[DomainId]
    owners: frozenset[int]

    def admits(self, domain: DomainId) -> bool:
        return not self.tenant or domain in self.domains


class Explaining:
    """Changes nothing."""

    def __init__(
        self, decisions: Decisions, membership: Membership, sessions: Sessions, shares: Shares
    ) -> None:
        self._decisions = decisions
        self._membership = membership
        self._sessions = sessions
        self._shares = shares

    def find(self, query: DecisionQuery) -> Iterator[Told]:
        """The latest first."""
        asked = self._ask(query)
        for note in sorted(self._notes(query), key=lambda note: -note.number):
            if (not query.before or note.number < query.before) and _concerns(asked, note):
                yield self._told(asked, note)

    def count(self, query: DecisionQuery) -> int:
        asked = self._ask(query)
        return sum(_concerns(asked, note) for note in self._notes(query))

    def knows(self, query: DecisionQuery) -> bool:
        """Whether there is, or anything was decided of, all that is named."""
        engines = self._membership.engines
        if (query.engine and not self.engines(query.engine)) or not self._has(query.tenant):
            return False
        named = query.sequence or query.session
        return not named or self._is_there(query, [engines[id] for id in engines if query.engine in ("", id)])

    def engines(self, beginning: str) -> list[EngineId]:
        """Whose ids begin so, of those that are there and those of which anything was decided."""
        notes = [note for notes in self._decisions.notes.values() for note in notes]
        found = {note.decision.engine for note in notes} | set(self._membership.engines)
        found |= {party.engine for note in notes for party in note.parties}
        return sorted(engine for engine in found if engine and engine.startswith(beginning))

    def tenant_of(self, domain: DomainId) -> str:
        """Its name; empty where there is only one."""
        return self._shares.tenant_of(domain)

    def _is_there(self, query: DecisionQuery, engines: list[Engine]) -> bool:
        """Whether the session or the sequence is, or anything was decided of it."""
        asked = self._ask(query)
        names = self._sessions.names()
        if query.session and any(name == query.session and asked.admits(domain) for domain, name in names):
            return not query.sequence
        return self.count(structs.replace(query, kind="", before=0)) > 0 or any(
            query.sequence in (0, sequence.id)
            and query.session in ("", sequence.session)
            and asked.admits(sequence.domain)
            for engine in engines
            for sequence in engine.sequences.values()
        )

    def _has(self, tenant: str) -> bool:
        return not tenant or tenant in self._shares.names

    def _ask(self, query: DecisionQuery) -> _Asked:
        tenant = query.tenant if self._shares.are_shared else ""
        domains = frozenset(
            domain for domain in self._decisions.domains if not tenant or self.tenant_of(domain) == tenant
        )
        owners = frozenset(session_owner(domain, query.session) for domain in domains if query.session)
        return _Asked(query, tenant, domains, owners)

    def _notes(self, query: DecisionQuery) -> Iterator[Note]:
        kinds = [kind for kind in KINDS if query.kind in ("", kind) and self._has(query.tenant)]
        return (note for kind in kinds for note in self._decisions.notes[kind])

    def _told(self, asked: _Asked, note: Note) -> Told:
        decision, blocks_of = note.decision, NOBODY_NAMED
        if note.owners.size:
            # Lone sequences have negative numbers.
            by_owner = note.by_owner()
            owned = sum(count for owner, count in by_owner.items() if owner > ANONYMOUS)
            figures = [*note.counts.items(), ("blocks_of_sessions", float(owned))]
            if mine := sum(by_owner.get(owner, 0) for owner in asked.owners):
                figures.append(("blocks_of_this_session", float(mine)))
                decision = structs.replace(decision, session=asked.query.session)
            decision = structs.replace(decision, inputs=(*figures, *decision.inputs))
            blocks_of = self._blocks_of(by_owner)
        return Told(
            number=note.number,
            decision=decision,
            lots=note.lots,
            until=note.until,
            room_for=tuple(note.parties),
            blocks_of=blocks_of,
            tenants=() if decision.tenant else tuple(sorted(filter(None, note.tenants))),
        )

    def _blocks_of(self, by_owner: dict[int, int]) -> tuple[BlocksOf, ...]:
        names = self._decisions.names
        named = [BlocksOf(*names[owner], count) for owner, count in by_owner.items() if owner in names]
        return tuple(sorted(named, key=lambda each: (-each.blocks, each.session))[:SESSIONS_TOLD])


def _concerns(asked: _Asked, note: Note) -> bool:
    """What is asked of is the decision's, or room was made for it, or blocks of it are in the lot."""
    query, decision = asked.query, note.decision
    is_own = asked.tenant in ("", decision.tenant)
    parties = [party for party in note.parties if asked.admits(party.domain)]
    if query.engine or query.sequence:
        whom = [(party.engine, party.sequence) for party in parties]
        if is_own:
            whom.append((decision.engine, decision.sequence))
        if not any(query.engine in ("", engine) and query.sequence in (0, id) for engine, id in whom):
            return False
    if not query.session:
        return is_own or bool(parties) or asked.tenant in note.tenants
    if is_own and query.session == decision.session:
        return True
    if any(party.session == query.session for party in parties):
        return True
    return bool(note.owners.size) and not note.by_owner().keys().isdisjoint(asked.owners)
