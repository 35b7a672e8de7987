"""Engines: leases, step numbers, fences and news of one attached process."""

from array import array
from collections import deque

from msgspec import Struct, field

from kvstore.core.answers import StepAnswer
from kvstore.core.calls import Single, Step
from kvstore.core.sequences import Sequence
from kvstore.core.types import (
    BlockKey,
    BlockRow,
    ChainPlace,
    DomainId,
    EngineId,
    EngineState,
    NamespaceId,
    Retention,
    Revision,
    Rows,
    SequenceId,
    StepNumber,
    Tier,
    WriterId,
)

__all__ = ["Engine", "Fence", "Publish", "Release", "SessionEnd", "SwapOut", "TurnEnd", "Used"]

# What takes effect when a step has completed. An engine has one queue of these, in order.


class Publish(Struct, kw_only=True, eq=False):
    """Blocks `first` to `end` of a table become findable under their keys.

    Table and keys are the sequence's own, not copies; the references that keep the rows are
    released by a later fence of the same queue, if at all.
    """

    fence: StepNumber
    domain: DomainId
    owner: int
    rows: "array[int]"
    keys: list[BlockKey]
    first: int
    end: int


class Release(Struct, kw_only=True, eq=False):
    """References in limbo end. `distinct`: they are those of one sequence, no row twice."""

    fence: StepNumber
    rows: Rows
    retention: Retention
    distinct: bool = False


class SwapOut(Struct, kw_only=True, eq=False):
    """The sequence's blocks may be copied."""

    fence: StepNumber
    sequence: Sequence


class SessionEnd(Struct, kw_only=True, eq=False):
    """The session is over, and blocks that only it used may go."""

    fence: StepNumber
    domain: DomainId
    session: str


class TurnEnd(Struct, kw_only=True, eq=False):
    """A turn of a session is to be gone on from: what it has committed is the session's chain."""

    fence: StepNumber
    domain: DomainId
    session: str
    turn: int
    keys: tuple[BlockKey, ...]
    # SESSION as the engine said, or DEFAULT: it said nothing.
    retention: Retention


class Used(Struct, kw_only=True, eq=False):
    """A sequence has ended that had these blocks, the first `found` of them when it began. `rows`: where it
    had them; another may have published some of them first."""

    fence: StepNumber
    domain: DomainId
    keys: tuple[BlockKey, ...]
    rows: "array[int]"
    found: int
    prompt_tokens: int
    answer_tokens: int
    turn: int


Fence = Publish | Release | SwapOut | SessionEnd | TurnEnd | Used


class Engine(Struct, eq=False):
    """One attached process and everything it holds."""

    id: EngineId
    request_id: str
    namespace: NamespaceId
    writer: WriterId
    build: str
    lease_seconds: float
    lease_expire_time: float
    state: EngineState = EngineState.ATTACHED

    # Exactly once: the last step taken, and what was asked and answered then.
    last_step: StepNumber = StepNumber(0)
    completed_step: StepNumber = StepNumber(0)
    last_event: Step | Single | None = None
    last_answer: StepAnswer | None = None

    sequences: dict[SequenceId, Sequence] = field(default_factory=dict)
    fences: deque[Fence] = field(default_factory=deque)
    # Committed by this engine, not yet visible to others: its own stream orders its reads.
    pending: dict[DomainId, dict[ChainPlace, BlockRow]] = field(default_factory=dict)
    # Sequences that have moved and tiers whose pressure has changed, since the engine was told
    # for good. Only that they did is kept, with a revision: what is told is how things are then.
    moved: dict[SequenceId, Revision] = field(default_factory=dict)
    pressed: dict[Tier, Revision] = field(default_factory=dict)

    # Open tethers, by the pid that the kernel named.
    pids: list[int] = field(default_factory=list)
    # What waits until no process of this expired engine can write to its frames any more.
    quarantine: list[Fence] = field(default_factory=list)

    def settled(self) -> list[Fence]:
        """Takes the fences that the completed step has passed."""
        passed: list[Fence] = []
        while self.fences and self.fences[0].fence <= self.completed_step:
            passed.append(self.fences.popleft())
        return passed

    def forget_news(self, seen: Revision) -> None:
        """The engine has taken in what happened up to this revision."""
        if self.moved:
            self.moved = {about: revision for about, revision in self.moved.items() if revision > seen}
        if self.pressed:
            self.pressed = {about: revision for about, revision in self.pressed.items() if revision > seen}

    def knows_filled(self, sequence: Sequence, filled_tokens: int) -> int:
        """Filled tokens as the engine names them, or fewer if it can't know yet that a load failed."""
        if sequence.id in self.moved:
            return min(filled_tokens, sequence.filled_tokens)
        return filled_tokens
