"""What was decided lately, so that it can be asked why: a bounded memory, and no part of the state.

Kinds: "swap" (a sequence leaves the GPU: swapped or dropped), "restore" (how much of what is below the GPU is
loaded for one that comes in), "evict" (a lot of cached blocks leaves a tier, for room) and "admit" (a lot is
to be written to disk, or is shed). Sequences one by one, blocks by the lot: a note costs some microseconds.
Nothing is ever decided by what stands here.
"""

from collections import deque
from collections.abc import Iterator

import numpy as np
from msgspec import Struct, structs
from numpy.typing import NDArray

from kvstore.core.blocks import NO_ROWS
from kvstore.core.operations import Decision
from kvstore.core.sequences import session_owner
from kvstore.core.types import DomainId, EngineId, SequenceId

__all__ = ["KEPT_MAX", "KINDS", "OWNERS_MAX", "DecisionQuery", "Decisions"]

KINDS = ("swap", "restore", "evict", "admit")
# Of each kind.
KEPT_MAX = 4_096
# Of a lot so many blocks are remembered by whose they are.
OWNERS_MAX = 1_024


class DecisionQuery(Struct, frozen=True, kw_only=True):
    """Which decisions: all that is named must hold. `before`: only those with a lower number; 0: all."""

    engine: EngineId = EngineId("")
    sequence: SequenceId = SequenceId(0)
    session: str = ""
    kind: str = ""
    before: int = 0


class _Note(Struct):
    number: int
    decision: Decision
    # Owners of the blocks of a lot.
    owners: NDArray[np.int64]


class Decisions:
    def __init__(self) -> None:
        # Where sessions are looked for: every domain that had a sequence.
        self.domains: set[DomainId] = set()
        self._notes: dict[str, deque[_Note]] = {kind: deque(maxlen=KEPT_MAX) for kind in KINDS}
        self._last_number = 0

    def note(self, decision: Decision, owners: NDArray[np.int64] = NO_ROWS) -> None:
        """`owners`: of the blocks of a lot."""
        self._last_number += 1
        # A copy: a view would keep all of them in memory.
        first = owners[:OWNERS_MAX].copy()
        self._notes[decision.kind].append(_Note(self._last_number, decision, first))

    def forget(self, session: str) -> None:
        """Nothing is to be told of this session any more; without a name, of none."""
        for kind, notes in self._notes.items():
            left = [note for note in notes if session and note.decision.session != session]
            self._notes[kind] = deque(left, maxlen=KEPT_MAX)

    def find(self, query: DecisionQuery) -> Iterator[tuple[int, Decision]]:
        """The latest first, each with its number."""
        notes = [note for kind in KINDS if query.kind in ("", kind) for note in self._notes[kind]]
        owners = [session_owner(domain, query.session) for domain in sorted(self.domains)]
        for note in sorted(notes, key=lambda note: -note.number):
            if not query.before or note.number < query.before:
                decision = _seen_by(query, note, owners)
                if decision is not None:
                    yield note.number, decision


def _seen_by(query: DecisionQuery, note: _Note, owners: list[int]) -> Decision | None:
    """The decision as far as it concerns whom is asked for; None: not at all."""
    decision = note.decision
    if (query.engine and decision.engine != query.engine) or (
        query.sequence and decision.sequence != query.sequence
    ):
        return None
    if not note.owners.size:
        return decision if query.session in ("", decision.session) else None
    # Lone sequences have negative numbers.
    figures = [("blocks_of_sessions", float(np.count_nonzero(note.owners > 0)))]
    if query.session:
        mine = int(np.isin(note.owners, owners).sum())
        if not mine:
            return None
        figures.append(("blocks_of_this_session", float(mine)))
    return structs.replace(decision, session=query.session, inputs=(*decision.inputs, *figures))
