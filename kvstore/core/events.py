"""What enters `Store.handle`: calls (`calls.py`), the passing of time, ends of long actions.

Events are plain frozen records: every field is a number, a string, bytes, an enum of
`types.py`, another record, or a sequence of those, so that a journal can write them down and
a replayer read them back. `time` is in seconds on the store's own monotonic clock; the core
knows no other.
"""

from collections.abc import Sequence

from msgspec import Struct

from kvstore.core.calls import (
    Attach,
    Detach,
    Drain,
    Forget,
    ForgetOn,
    GetSequence,
    KeepAlive,
    Lookup,
    Prefetch,
    Retain,
    SetCosts,
    SetLimits,
    Single,
    Step,
    Watch,
)
from kvstore.core.types import EngineId, StoredKey, StoredSession, SyncId, TransferId

__all__ = [
    "BlocksFound",
    "BlocksLost",
    "DiskSynced",
    "Event",
    "FramesReturned",
    "TetherOpened",
    "TethersClosed",
    "Tick",
    "TransferEnded",
]


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
    # In columns (`StoredBlocks`) where there may be many.
    blocks: Sequence[StoredKey] = ()
    sessions: tuple[StoredSession, ...] = ()


Event = (
    Attach
    | KeepAlive
    | Detach
    | Step
    | Single
    | Lookup
    | GetSequence
    | Watch
    | Drain
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
    | SetCosts
)
