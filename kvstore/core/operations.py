"""Operations of an engine's step, and the result of each.

A step is checked whole and applied in phases, kind by kind; the results are in the order of the operations.
"""

from msgspec import Struct

from kvstore.core.types import (
    Activity,
    BlockKey,
    Direction,
    EngineId,
    Frame,
    Outcome,
    Retention,
    SequenceId,
    SequenceState,
    SwapMode,
)

__all__ = [
    "Allocate",
    "AllocateResult",
    "Commit",
    "CommitResult",
    "Decision",
    "EndSession",
    "EndSessionResult",
    "Fork",
    "ForkResult",
    "Free",
    "FreeResult",
    "Grow",
    "GrowResult",
    "GrownOtherwise",
    "Operation",
    "Result",
    "Swap",
    "SwapResult",
    "UpdateActivity",
    "UpdateActivityResult",
]

# ------------------------------------------------------------------------- what is asked


class Allocate(Struct, frozen=True, kw_only=True, gc=False):
    """Room for `token_count` tokens; creates the sequence when it is new."""

    sequence: SequenceId
    token_count: int
    block_keys: tuple[BlockKey, ...] = ()
    session: str = ""
    turn: int = 0
    priority: int = 0
    known_blocks: int = 0
    tenant: str = ""


class Grow(Struct, frozen=True, kw_only=True, gc=False):
    """Room for more tokens: an Allocate of each sequence, in columns of one length."""

    sequences: tuple[SequenceId, ...]
    token_counts: tuple[int, ...]
    known_blocks: tuple[int, ...]


class Fork(Struct, frozen=True, kw_only=True, gc=False):
    """Shares all of the parent's blocks with new sequences."""

    parent: SequenceId
    children: tuple[SequenceId, ...]


class Swap(Struct, frozen=True, kw_only=True, gc=False):
    """Moves a sequence down or up. `filled_tokens` counts for OUT only."""

    sequence: SequenceId
    direction: Direction
    mode: SwapMode = SwapMode.AUTO
    filled_tokens: int = 0


class Free(Struct, frozen=True, kw_only=True, gc=False):
    """Gives sequences up; unknown ones are passed over."""

    sequences: tuple[SequenceId, ...]
    retention: Retention = Retention.DEFAULT


class Commit(Struct, frozen=True, kw_only=True, gc=False):
    """Publishes full blocks from `first_block` on under their keys."""

    sequence: SequenceId
    first_block: int
    block_keys: tuple[BlockKey, ...]


class UpdateActivity(Struct, frozen=True, kw_only=True, gc=False):
    """`resume_delay_seconds` below zero: unknown."""

    sequence: SequenceId
    activity: Activity
    resume_delay_seconds: float = -1.0
    filled_tokens: int = 0


class EndSession(Struct, frozen=True, kw_only=True, gc=False):
    """The conversation is over; its last turn may have been freed already."""

    session: str
    tenant: str = ""


Operation = Allocate | Grow | Fork | Swap | Free | Commit | UpdateActivity | EndSession

# ---------------------------------------------------------------------- what is answered


class AllocateResult(Struct, frozen=True, kw_only=True, gc=False):
    """`block_table` holds the frames from `first_block` on; `tier_tokens` sums to `cached_tokens`."""

    outcome: Outcome
    state: SequenceState
    cached_tokens: int = 0
    block_table: tuple[Frame, ...] = ()
    first_block: int = 0
    frames_short: int = 0
    tier_tokens: tuple[int, int, int] = (0, 0, 0)


class GrownOtherwise(Struct, frozen=True, kw_only=True, gc=False):
    """`place`: of the sequence in its Grow."""

    place: int
    result: AllocateResult


class GrowResult(Struct, frozen=True, kw_only=True, gc=False):
    """`frame_counts`: how many of `frames` are each sequence's, from its block `known_blocks` on.

    `others` are those that did not simply grow; their frame count is 0.
    """

    frame_counts: tuple[int, ...]
    frames: tuple[Frame, ...]
    others: tuple[GrownOtherwise, ...] = ()


class ForkResult(Struct, frozen=True, kw_only=True, gc=False):
    outcome: Outcome


class Decision(Struct, frozen=True, kw_only=True, gc=False):
    """A choice, what it was chosen over, and the inputs it rested on, by name (`decisions.py` has the kinds).

    Costs are in seconds, as the policy prices them; both 0 where nothing was weighed, and `reason` says why
    it was chosen. What concerns a tier and no sequence has no engine. `tenant`: whose it is, where there are
    several; empty also for a lot with blocks of more than one.
    """

    time: float
    kind: str
    chosen: str
    other: str = ""
    chosen_cost_seconds: float = 0.0
    other_cost_seconds: float = 0.0
    reason: str = ""
    engine: EngineId = EngineId("")
    sequence: SequenceId = SequenceId(0)
    session: str = ""
    tenant: str = ""
    inputs: tuple[tuple[str, float], ...] = ()


class SwapResult(Struct, frozen=True, kw_only=True, gc=False):
    """`decision` is there where a policy was asked."""

    outcome: Outcome
    state: SequenceState
    block_table: tuple[Frame, ...] = ()
    valid_tokens: int = 0
    frames_short: int = 0
    decision: Decision | None = None


class FreeResult(Struct, frozen=True, kw_only=True, gc=False):
    pass


class CommitResult(Struct, frozen=True, kw_only=True, gc=False):
    pass


class UpdateActivityResult(Struct, frozen=True, kw_only=True, gc=False):
    outcome: Outcome
    state: SequenceState


class EndSessionResult(Struct, frozen=True, kw_only=True, gc=False):
    pass


Result = (
    AllocateResult
    | GrowResult
    | ForkResult
    | SwapResult
    | FreeResult
    | CommitResult
    | UpdateActivityResult
    | EndSessionResult
)
