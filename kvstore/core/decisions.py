"""What was decided lately, so that it can be asked why: a bounded memory, and no part of the state.

Kinds: "swap" (a sequence leaves the GPU: swapped or dropped), "restore" (how much of what is below the GPU is
loaded for one that comes in), "evict" (a lot of cached blocks leaves a tier, for room) and "admit" (a lot is
to be written to disk, or is not, or is shed). Sequences one by one, blocks by the lot; lots that are alike
and follow one another are one note, with a count: what is decoded evicts a block at a time.

A note costs a microsecond or two, and what costs more to tell is asked for once a note. Nothing is ever
decided by what stands here. Who asks is answered by `explaining.py`.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from kvstore.core.blocks import NO_ROWS
from kvstore.core.operations import Decision
from kvstore.core.ports import Figures
from kvstore.core.sequences import Sequence, session_owner
from kvstore.core.types import DomainId, EngineId, SequenceId

__all__ = ["KEPT_MAX", "KINDS", "NO_FIGURES", "OWNERS_MAX", "Decisions", "Lot", "Note", "Party", "no_figures"]

KINDS = ("swap", "restore", "evict", "admit")
# Of each kind.
KEPT_MAX = 4_096
# Of a lot so many blocks are remembered by whose they are, and so many sequences for which room was made.
OWNERS_MAX = 1_024
PARTIES_MAX = 8
# Lots are one note if each follows the one before so soon, and all of them within so long.
FOLD_GAP_SECONDS, FOLD_SECONDS = 1.0, 10.0
# Sessions known by name, the latest: of lots whose blocks are others' it is told how many.
NAMES_MAX = 16_384
# Whose a block is that nobody is named for.
ANONYMOUS = 0
NO_FIGURES: Figures = ()


def no_figures() -> Figures:
    """Nothing more is to be told of a lot."""
    return NO_FIGURES


class Party(Struct, frozen=True):
    """A sequence for which room was made."""

    engine: EngineId
    sequence: SequenceId
    session: str
    domain: DomainId


class Lot(Struct, frozen=True):
    """Blocks that one decision was about. Lots are alike if their first three fields are, `tenant` and
    `sequences`."""

    kind: str
    chosen: str
    reason: str
    # Whose the blocks are; none where there is only one tenant.
    tenants: tuple[str, ...]
    # How many blocks, by what became of them: added up over lots that are alike.
    counts: Figures
    # For whom room was made. With `of_many` others may be in the same note, and the first are named.
    sequences: tuple[Sequence, ...] | list[Sequence] = ()
    of_many: bool = False

    @property
    def tenant(self) -> str:
        """The one whose all blocks are; empty: they are not one's."""
        return self.tenants[0] if len(self.tenants) == 1 else ""


class Note(Struct, eq=False):
    """A decision, and the lots in it. `owners`: of their blocks, counted only when somebody asks."""

    number: int
    decision: Decision
    # Of the last lot, and how many they are.
    until: float
    lots: int = 1
    counts: dict[str, float] = field(default_factory=dict)
    parties: dict[Party, None] = field(default_factory=dict)
    tenants: set[str] = field(default_factory=set)
    owners: NDArray[np.int64] = NO_ROWS
    _by_owner: dict[int, int] | None = None

    def by_owner(self) -> dict[int, int]:
        """How many blocks each owner has in it, of those that are remembered."""
        if self._by_owner is None:
            owners, counts = np.unique(self.owners, return_counts=True)
            self._by_owner = dict(zip(owners.tolist(), counts.tolist(), strict=True))
        return self._by_owner

    def add_owners(self, owners: NDArray[np.int64]) -> None:
        room = OWNERS_MAX - self.owners.size
        if room > 0:
            self.owners = np.concatenate([self.owners, owners[:room]])
            self._by_owner = None

    def is_of(self, session: str, tenants: Collection[str]) -> bool:
        return self.decision.session == session and self.decision.tenant in tenants

    def forget(self, session: str, owners: Mapping[DomainId, int]) -> None:
        """Its blocks are nobody's from now on, and nobody is named for them. `owners`: its number in each
        domain where it is forgotten."""
        mine = np.isin(self.owners, list(owners.values()))
        if mine.any():
            self.owners[mine], self._by_owner = ANONYMOUS, None
        left = [each for each in self.parties if each.session != session or each.domain not in owners]
        self.parties = dict.fromkeys(left)


class Decisions:
    def __init__(self) -> None:
        # Where sessions are looked for: every domain that had a sequence; and what they are called, by owner.
        self.domains: set[DomainId] = set()
        self.names: dict[int, tuple[DomainId, str]] = {}
        self.notes: dict[str, deque[Note]] = {kind: deque(maxlen=KEPT_MAX) for kind in KINDS}
        self._last_number = 0

    def name(self, domain: DomainId, owner: int, session: str) -> None:
        """Who is known by this number from now on; without a session, nobody is."""
        self.domains.add(domain)
        if session:
            self.names[owner] = domain, session
            if len(self.names) > NAMES_MAX:
                del self.names[next(iter(self.names))]

    def note(self, decision: Decision) -> None:
        """Of one sequence."""
        self._last_number += 1
        self.notes[decision.kind].append(Note(self._last_number, decision, decision.time))

    def note_lot(
        self,
        time: float,
        lot: Lot,
        owners: NDArray[np.int64],
        figures: Callable[[], Figures] = no_figures,
    ) -> None:
        """`owners` of its blocks; `figures`: what else it rested on, asked of the first of lots alike."""
        notes = self.notes[lot.kind]
        if notes and _is_alike(notes[-1], lot, time):
            note = notes[-1]
            note.lots += 1
            note.until = time
            note.add_owners(owners)
        else:
            self._last_number += 1
            decision = Decision(
                time=time,
                kind=lot.kind,
                chosen=lot.chosen,
                reason=lot.reason,
                tenant=lot.tenant,
                inputs=figures(),
            )
            # A copy: a view would keep all of them in memory.
            note = Note(self._last_number, decision, time, owners=owners[:OWNERS_MAX].copy())
            notes.append(note)
        for name, count in lot.counts:
            note.counts[name] = note.counts.get(name, 0.0) + count
        note.tenants.update(lot.tenants)
        for sequence in lot.sequences[: PARTIES_MAX - len(note.parties)]:
            note.parties[_party(sequence)] = None

    def forget(self, session: str, tenants: Collection[str], covers: Callable[[DomainId], bool]) -> None:
        """Nothing is to be told any more of this session of these tenants, whose domains are covered; without
        a session, of anybody."""
        domains = filter(covers, self.domains)
        owners = {domain: session_owner(domain, session) for domain in domains} if session else {}
        for owner in owners.values():
            self.names.pop(owner, None)
        if not session:
            self.names.clear()
        for kind, notes in self.notes.items():
            left = [note for note in notes if session and not note.is_of(session, tenants)]
            for note in left:
                note.forget(session, owners)
            self.notes[kind] = deque(left, maxlen=KEPT_MAX)


def _party(sequence: Sequence) -> Party:
    return Party(sequence.engine, sequence.id, sequence.told_session, sequence.domain)


def _is_alike(note: Note, lot: Lot, time: float) -> bool:
    decision = note.decision
    if (
        time - note.until > FOLD_GAP_SECONDS
        or time - decision.time > FOLD_SECONDS
        or decision.reason != lot.reason
        or decision.chosen != lot.chosen
        or decision.tenant != lot.tenant
    ):
        return False
    return lot.of_many or not lot.sequences or note.parties == {_party(each): None for each in lot.sequences}
