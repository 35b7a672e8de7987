"""What enters `Store.handle`: calls of engines, the passing of time, ends of long actions.

Events are plain frozen records: every field is a number, a string, bytes, an enum of
`types.py`, another record, or a tuple of those, so that a journal can write them down and
a replayer read them back. `time` is in seconds on the store's own monotonic clock; the core
knows no other.
"""

from msgspec import Struct

from kvstore.core.types import (
    Activity,
    BlockKey,
    Direction,
    EngineId,
    ForgetId,
    NamespaceId,
    Retention,
    Revision,
    SequenceId,
    StepNumber,
    StoredKey,
    StoredSession,
    SwapMode,
    SyncId,
    Tier,
    TransferId,
    Watermarks,
    WriterId,
)

__all__ = [
    "Allocate",
    "Attach",
    "BlocksFound",
    "BlocksLost",
    "Commit",
    "Detach",
    "DiskSynced",
    "EndSession",
    "Event",
    "Forget",
    "ForgetOn",
    "Fork",
    "FramesReturned",
    "Free",
    "Grow",
    "KeepAlive",
    "Lookup",
    "Operation",
    "Prefetch",
    "Retain",
    "SetLimits",
    "Single",
    "Step",
    "Swap",
    "TetherOpened",
    "TethersClosed",
    "Tick",
    "TransferEnded",
    "UpdateActivity",
]

# ------------------------------------------------------------------ operations of a step


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

# ---------------------------------------------------------------------- calls of engines


class Attach(Struct, frozen=True, kw_only=True, gc=False):
    """A process wants to use the pools. The shell has checked the layout's sizes against them.

    `engine` is the id it gets if `request_id` is new; the answer names the one it has.
    """

    time: float
    engine: EngineId
    request_id: str
    namespace: NamespaceId
    writer: WriterId
    build: str
    lease_seconds: float


class KeepAlive(Struct, frozen=True, kw_only=True, gc=False):
    time: float
    engine: EngineId
    completed_step: StepNumber
    seen_revision: Revision = Revision(0)


class Detach(Struct, frozen=True, kw_only=True, gc=False):
    time: float
    engine: EngineId


class Step(Struct, frozen=True, kw_only=True, gc=False):
    """All operations of one engine iteration: checked whole, then applied in phases."""

    time: float
    engine: EngineId
    step: StepNumber
    completed_step: StepNumber
    operations: tuple[Operation, ...]


class Single(Struct, frozen=True, kw_only=True, gc=False):
    """One operation of an engine that makes unary calls; the store numbers the step."""

    time: float
    engine: EngineId
    operation: Operation


class Lookup(Struct, frozen=True, kw_only=True, gc=False):
    """How much of a prompt is cached. Takes nothing, but renews the lease."""

    time: float
    engine: EngineId
    block_keys: tuple[BlockKey, ...]
    tenant: str = ""


class Prefetch(Struct, frozen=True, kw_only=True, gc=False):
    """Starts to bring up what is cached of a prompt, or of a session's chain: to `target`, CPU or GPU."""

    time: float
    engine: EngineId
    block_keys: tuple[BlockKey, ...] = ()
    session: str = ""
    target: Tier = Tier.CPU
    tenant: str = ""


class Retain(Struct, frozen=True, kw_only=True, gc=False):
    """Keeps what is cached of a prompt, or of the chain of a session, longer than other cache, for a time."""

    time: float
    engine: EngineId
    ttl_seconds: float
    block_keys: tuple[BlockKey, ...] = ()
    session: str = ""
    priority: int = 0
    tenant: str = ""


# ------------------------------------------------------------------------ calls of operators


class Forget(Struct, frozen=True, kw_only=True, gc=False):
    """Takes out of every tier what a session, a tenant, a namespace or writers have left; all that is named
    counts, and of what is not (no text, 0, nothing) all.

    Of a session, the blocks that nobody else uses; with `whole_chain` all of its chain, and with them
    all that hangs on these.
    """

    time: float
    session: str = ""
    tenant: str = ""
    namespace: NamespaceId = NamespaceId(0)
    writers: tuple[WriterId, ...] = ()
    whole_chain: bool = False


class ForgetOn(Struct, frozen=True, kw_only=True, gc=False):
    """The next lot of a Forget that is not done."""

    time: float
    forget: ForgetId


# ------------------------------------------------------------- what the shell sees happen


class Tick(Struct, frozen=True, kw_only=True, gc=False):
    """Time has passed; at least ten a second. A gap of over a second extends all leases."""

    time: float


class TetherOpened(Struct, frozen=True, kw_only=True, gc=False):
    """A process has fetched the descriptors of a rank's pools."""

    time: float
    engine: EngineId
    pid: int


class TethersClosed(Struct, frozen=True, kw_only=True, gc=False):
    """The last tether of the engine has closed: no process maps the pools for it any more."""

    time: float
    engine: EngineId


class TransferEnded(Struct, frozen=True, kw_only=True, gc=False):
    """The one end of a `Transfer`. `failed` holds positions in the transfer's blocks.

    `late` are those of them that were not read in time: the device may still write into their target
    frames, which stay taken until `FramesReturned` names them. Nothing says that such a block is bad.
    """

    time: float
    transfer: TransferId
    failed: tuple[int, ...] = ()
    late: tuple[int, ...] = ()


class FramesReturned(Struct, frozen=True, kw_only=True, gc=False):
    """Reads that were late have ended: nothing writes into the target frames at these positions of
    the transfer any more. Each is named once."""

    time: float
    transfer: TransferId
    positions: tuple[int, ...]


class BlocksLost(Struct, frozen=True, kw_only=True, gc=False):
    """The disk has found these blocks bad by itself, and has dropped them."""

    time: float
    keys: tuple[StoredKey, ...]


class DiskSynced(Struct, frozen=True, kw_only=True, gc=False):
    """The one end of a `DiskSync`. `failed`: the disk could not delete something, and tries again."""

    time: float
    sync: SyncId
    failed: bool = False


class BlocksFound(Struct, frozen=True, kw_only=True, gc=False):
    """What the disk holds at start, each block after its parent, the least recent chains first.

    Sent before any engine attaches. Blocks beyond the tier's capacity are deleted. `sessions`, the least
    recent first, are those that the disk kept; of each the leading blocks that are there count.
    """

    time: float
    blocks: tuple[StoredKey, ...] = ()
    sessions: tuple[StoredSession, ...] = ()


class SetLimits(Struct, frozen=True, kw_only=True, gc=False):
    """An operator sets the watermarks of some tiers. Limits of links are the movers' affair."""

    time: float
    watermarks: tuple[Watermarks, ...]


Event = (
    Attach
    | KeepAlive
    | Detach
    | Step
    | Single
    | Lookup
    | Prefetch
    | Retain
    | Forget
    | ForgetOn
    | Tick
    | TetherOpened
    | TethersClosed
    | TransferEnded
    | DiskSynced
    | FramesReturned
    | BlocksFound
    | BlocksLost
    | SetLimits
)
