"""What leaves `Store.handle`: the answer, long actions to start, engines to wake.

An effect is a plain frozen record, like an event. A `Transfer` ends in exactly one
`TransferEnded`, good or bad, which the shell feeds back. Answers stand in `answers.py`, what is told
of what happens in `notices.py`.
"""

from msgspec import Struct, field

from kvstore.core.answers import Answer, Done
from kvstore.core.notices import Happening
from kvstore.core.types import (
    EngineId,
    Frame,
    SequenceId,
    SessionName,
    StoredKey,
    StoredSession,
    SyncId,
    Tier,
    TransferId,
    Urgency,
)

__all__ = [
    "Admitted",
    "BlocksUsed",
    "DiskDelete",
    "DiskNote",
    "DiskSync",
    "Effects",
    "SessionsForgotten",
    "SessionsKept",
    "Transfer",
]


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


DiskNote = SessionsKept | SessionsForgotten | BlocksUsed


class DiskSync(Struct, frozen=True, kw_only=True, gc=False):
    """Asks whether all deletes and notes that were told before are durable, those that have failed and are
    tried again included. Ends in exactly one `DiskSynced`."""

    sync: SyncId


class Admitted(Struct, frozen=True, kw_only=True, gc=False):
    """A sequence has got its first frames: how many blocks were looked for in the index, and how many
    leading ones were found, by the tier of their best copy. Told once a sequence, for the count of hits:
    not when it is asked for again, and not when it comes back after a drop."""

    sequence: SequenceId
    blocks_queried: int
    tier_blocks: tuple[int, int, int] = (0, 0, 0)


class Effects(Struct, frozen=True, kw_only=True, gc=False):
    """All that follows from one event.

    `deletes` go to the disk before `notes`, these before `syncs`, and all of them before `transfers`, in
    the order given; `answer` may be told at once: whatever it says may be read is there already. `wake`
    names engines that have news for a waiting KeepAlive. `raised` are transfers told before, which nobody
    waited for then and somebody does now: what is left of them goes as ASKED. `admitted` is for those who
    count. `happened` is for those who watch, in the order of its revisions, which have no gap while somebody
    does.
    """

    answer: Answer = field(default_factory=Done)
    transfers: tuple[Transfer, ...] = ()
    raised: tuple[TransferId, ...] = ()
    deletes: tuple[DiskDelete, ...] = ()
    wake: tuple[EngineId, ...] = ()
    admitted: tuple[Admitted, ...] = ()
    happened: tuple[Happening, ...] = ()
    notes: tuple[DiskNote, ...] = ()
    syncs: tuple[DiskSync, ...] = ()
