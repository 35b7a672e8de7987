"""What enters `Store.handle`: calls of engines, the passing of time, ends of long actions.

Events are plain frozen records: every field is a number, a string, bytes, an enum of
`types.py`, another record, or a tuple of those, so that a journal can write them down and
a replayer read them back. `time` is in seconds on the store's own monotonic clock; the core
knows no other.
"""

from dataclasses import dataclass

from kvstore.core.types import (
    Activity,
    BlockKey,
    Direction,
    EngineId,
    NamespaceId,
    Retention,
    Revision,
    SequenceId,
    StepNumber,
    StoredKey,
    SwapMode,
    TransferId,
    WriterId,
)

__all__ = [
    "Allocate",
    "Attach",
    "BlocksFound",
    "Commit",
    "Detach",
    "EndSession",
    "Event",
    "Fork",
    "Free",
    "KeepAlive",
    "Lookup",
    "Operation",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocate:
    """Room for `token_count` tokens; creates the sequence when it is new."""

    sequence: SequenceId
    token_count: int
    block_keys: tuple[BlockKey, ...] = ()
    session: str = ""
    turn: int = 0
    priority: int = 0
    known_blocks: int = 0
    tenant: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """Shares all of the parent's blocks with new sequences."""

    parent: SequenceId
    children: tuple[SequenceId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """Moves a sequence down or up. `filled_tokens` counts for OUT only."""

    sequence: SequenceId
    direction: Direction
    mode: SwapMode = SwapMode.AUTO
    filled_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Free:
    """Gives sequences up; unknown ones are passed over."""

    sequences: tuple[SequenceId, ...]
    retention: Retention = Retention.DEFAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Publishes full blocks from `first_block` on under their keys."""

    sequence: SequenceId
    first_block: int
    block_keys: tuple[BlockKey, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateActivity:
    """`resume_delay_seconds` below zero: unknown."""

    sequence: SequenceId
    activity: Activity
    resume_delay_seconds: float = -1.0
    filled_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndSession:
    """The conversation is over; its last turn may have been freed already."""

    session: str
    tenant: str = ""


Operation = Allocate | Fork | Swap | Free | Commit | UpdateActivity | EndSession

# ---------------------------------------------------------------------- calls of engines


@dataclass(frozen=True, slots=True, kw_only=True)
class Attach:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepAlive:
    time: float
    engine: EngineId
    completed_step: StepNumber
    seen_revision: Revision = Revision(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Detach:
    time: float
    engine: EngineId


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """All operations of one engine iteration: checked whole, then applied in phases."""

    time: float
    engine: EngineId
    step: StepNumber
    completed_step: StepNumber
    operations: tuple[Operation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Single:
    """One operation of an engine that makes unary calls; the store numbers the step."""

    time: float
    engine: EngineId
    operation: Operation


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """How much of a prompt is cached. Takes nothing, but renews the lease."""

    time: float
    engine: EngineId
    block_keys: tuple[BlockKey, ...]
    tenant: str = ""


# ------------------------------------------------------------- what the shell sees happen


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time has passed; at least ten a second. A gap of over a second extends all leases."""

    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TetherOpened:
    """A process has fetched the descriptors of a rank's pools."""

    time: float
    engine: EngineId
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TethersClosed:
    """The last tether of the engine has closed: no process maps the pools for it any more."""

    time: float
    engine: EngineId


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferEnded:
    """The one end of a `Transfer`. `failed` holds positions in the transfer's blocks."""

    time: float
    transfer: TransferId
    failed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksFound:
    """What the disk holds at start, each block after its parent, the least recent chains first.

    Sent before any engine attaches. Blocks beyond the tier's capacity are deleted.
    """

    time: float
    blocks: tuple[StoredKey, ...] = ()


Event = (
    Attach
    | KeepAlive
    | Detach
    | Step
    | Single
    | Lookup
    | Tick
    | TetherOpened
    | TethersClosed
    | TransferEnded
    | BlocksFound
)
