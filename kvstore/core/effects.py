"""What leaves `Store.handle`: the answer, long actions to start, engines to wake.

An effect is a plain frozen record, like an event. A `Transfer` ends in exactly one
`TransferEnded`, good or bad, which the shell feeds back.
"""

from msgspec import Struct, field

from kvstore.core.types import (
    EngineId,
    EngineState,
    ForgetId,
    Frame,
    Outcome,
    Pressure,
    Revision,
    SequenceId,
    SequenceState,
    SessionName,
    StepNumber,
    StoredKey,
    StoredSession,
    SyncId,
    Tier,
    TransferId,
    Urgency,
)

__all__ = [
    "Admitted",
    "AllocateResult",
    "Answer",
    "AttachAnswer",
    "BlocksUsed",
    "CommitResult",
    "Decision",
    "DiskDelete",
    "DiskNote",
    "DiskSync",
    "Done",
    "Effects",
    "EndSessionResult",
    "ForgetAnswer",
    "ForkResult",
    "FrameCopy",
    "FreeResult",
    "GrowResult",
    "GrownOtherwise",
    "KeepAliveAnswer",
    "LookupAnswer",
    "Notice",
    "PrefetchAnswer",
    "PressureChanged",
    "Result",
    "RetainAnswer",
    "SequenceMoved",
    "SessionsForgotten",
    "SessionsKept",
    "StepAnswer",
    "SwapResult",
    "Transfer",
    "UpdateActivityResult",
]

# ---------------------------------------------------------------- results of operations


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
    """A choice of a policy and the inputs it rested on, by name."""

    time: float
    kind: str
    chosen: str
    inputs: tuple[tuple[str, float], ...]


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

# ------------------------------------------------------------------- events for engines


class SequenceMoved(Struct, frozen=True, kw_only=True, gc=False):
    """A sequence's state has changed by itself; the table is told where it is RESIDENT."""

    revision: Revision
    sequence: SequenceId
    state: SequenceState
    block_table: tuple[Frame, ...]
    valid_tokens: int


class PressureChanged(Struct, frozen=True, kw_only=True, gc=False):
    revision: Revision
    tier: Tier
    pressure: Pressure


Notice = SequenceMoved | PressureChanged

# ------------------------------------------------------------------------------ answers


class AttachAnswer(Struct, frozen=True, kw_only=True, gc=False):
    """`created` is False when the request id was known: same engine, same lease."""

    engine: EngineId
    lease_expire_time: float
    created: bool


class KeepAliveAnswer(Struct, frozen=True, kw_only=True, gc=False):
    state: EngineState
    lease_expire_time: float
    revision: Revision
    notices: tuple[Notice, ...]


class FrameCopy(Struct, frozen=True, kw_only=True, gc=False):
    """A copy the engine makes on its own stream before its next forward pass."""

    source: Frame
    target: Frame


class StepAnswer(Struct, frozen=True, kw_only=True, gc=False):
    """Results in the order of the operations."""

    step: StepNumber
    results: tuple[Result, ...]
    copies: tuple[FrameCopy, ...]
    revision: Revision
    notices: tuple[Notice, ...]
    lease_expire_time: float


class LookupAnswer(Struct, frozen=True, kw_only=True, gc=False):
    """Leading blocks found, and how many of them have their best copy in each tier."""

    blocks_cached: int
    blocks_by_tier: tuple[int, int, int]


class PrefetchAnswer(Struct, frozen=True, kw_only=True, gc=False):
    """Blocks that are on their way up, or will be as soon as there is room and nothing more urgent."""

    blocks_started: int


class RetainAnswer(Struct, frozen=True, kw_only=True, gc=False):
    """Leading blocks that are retained now; fewer than there are where the tenant's budget is full."""

    blocks_retained: int


class ForgetAnswer(Struct, frozen=True, kw_only=True, gc=False):
    """How far a Forget is: blocks taken out so far. `done`: all is, and durably. `lots_left`: there is more
    to do before the disk is waited for."""

    forget: ForgetId
    blocks_forgotten: int
    done: bool
    lots_left: bool


class Done(Struct, frozen=True, kw_only=True, gc=False):
    """The answer to an event that asks for none."""


Answer = (
    AttachAnswer
    | KeepAliveAnswer
    | StepAnswer
    | LookupAnswer
    | PrefetchAnswer
    | RetainAnswer
    | ForgetAnswer
    | Done
)

# ------------------------------------------------------------------------- long actions


class Transfer(Struct, frozen=True, kw_only=True, gc=False):
    """Blocks to move between two neighbouring tiers: GPU and CPU, or CPU and DISK.

    The frames of both sides are pinned until `TransferEnded`. `keys` names the blocks where
    one side is the disk and is empty otherwise. A write to disk succeeds or fails whole, in one
    transaction, parents first; a read or a copy may fail for single blocks. A block that is read
    counts as good only when its checksum is right. `urgency`: which of those that wait for a link goes first.
    """

    id: TransferId
    source: Tier
    target: Tier
    source_frames: tuple[Frame, ...]
    target_frames: tuple[Frame, ...]
    keys: tuple[StoredKey, ...] = ()
    urgency: Urgency = Urgency.ASKED


class DiskDelete(Struct, frozen=True, kw_only=True, gc=False):
    """Blocks that the disk may forget. Runs in order with the disk's transfers; ends in nothing:
    a delete that is lost leaves a valid block behind, to be found at the next start."""

    keys: tuple[StoredKey, ...]


class Admitted(Struct, frozen=True, kw_only=True, gc=False):
    """A sequence has got its first frames: how many blocks were looked for in the index, and how many
    leading ones were found, by the tier of their best copy. Told once a sequence, for the count of hits:
    not when it is asked for again, and not when it comes back after a drop."""

    sequence: SequenceId
    blocks_queried: int
    tier_blocks: tuple[int, int, int] = (0, 0, 0)


class SessionsKept(Struct, frozen=True, kw_only=True, gc=False):
    """Sessions to write down, each in the place of what was known of it. Ends in nothing: one that is lost
    comes back after a restart as it was before, or not."""

    sessions: tuple[StoredSession, ...]


class SessionsForgotten(Struct, frozen=True, kw_only=True, gc=False):
    """Sessions of which the disk is to know nothing any more; their blocks are no affair of this."""

    sessions: tuple[SessionName, ...]


class BlocksUsed(Struct, frozen=True, kw_only=True, gc=False):
    """Blocks on disk that were used, those used longest ago first, a child before its parent. Ends in
    nothing: what is lost makes them look older after a restart."""

    keys: tuple[StoredKey, ...]


class DiskSync(Struct, frozen=True, kw_only=True, gc=False):
    """Asks whether all deletes and notes that were told before are durable, those that have failed and are
    tried again included. Ends in exactly one `DiskSynced`."""

    sync: SyncId


DiskNote = SessionsKept | SessionsForgotten | BlocksUsed


class Effects(Struct, frozen=True, kw_only=True, gc=False):
    """All that follows from one event.

    `deletes` go to the disk before `notes`, these before `syncs`, and all of them before `transfers`, in
    the order given; `answer` may be told at once: whatever it says may be read is there already. `wake`
    names engines that have news for a waiting KeepAlive; `admitted` is for those who count.
    """

    answer: Answer = field(default_factory=Done)
    transfers: tuple[Transfer, ...] = ()
    deletes: tuple[DiskDelete, ...] = ()
    wake: tuple[EngineId, ...] = ()
    notes: tuple[DiskNote, ...] = ()
    syncs: tuple[DiskSync, ...] = ()
    admitted: tuple[Admitted, ...] = ()
