"""What a mover is made of, whom it tells what, and what it counts."""

from collections.abc import Callable
from dataclasses import dataclass, field

from kvstore.core.types import TransferId
from kvstore.tiers.disk_tickets import Tickets
from kvstore.tiers.moves import Move
from kvstore.tiers.pacing import Clock, RealClock, TokenBucket
from kvstore.tiers.turns import GiveWay, Told

__all__ = ["Ended", "MoverCounts", "MoverSetup", "Returned", "Tell"]

# A transfer's end: its id, the positions in it that failed, and of these the late ones, whose target frames
# a device may still write. Called in a mover's thread.
Ended = Callable[[TransferId, tuple[int, ...], tuple[int, ...]], None]
# Late positions that no device writes any more. Called after their transfer's end, in any thread.
Returned = Callable[[TransferId, tuple[int, ...]], None]
Tell = Callable[[Told], None]


@dataclass(slots=True)
class MoverCounts:
    """Since the start. Waits are from being given a transfer to its first piece."""

    bytes_moved: int = 0
    blocks_moved: int = 0
    blocks_failed: int = 0
    transfers_begun: int = 0
    wait_seconds: float = 0.0
    # Of all threads together, waits for the limit included.
    busy_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MoverSetup:
    """What a mover does, and within which bounds. `piece_bytes` 0: a transfer is one piece."""

    name: str
    move: Move
    frame_bytes: int
    piece_bytes: int
    ended: Ended
    returned: Returned
    bucket: TokenBucket
    tell: Tell | None = None
    # Each transfer, which is one piece then, takes one as it is begun; their ends are told in this order.
    tickets: Tickets | None = None
    threads: int = 1
    # Bytes of all its transfers; 0: no bound but that on their number.
    in_flight_bytes_max: int = 0
    # Told what a piece took, without waits: bytes and seconds.
    measured: Callable[[int, float], None] | None = None
    # Among these it gives way; or its asked-for transfers are what others give way to.
    gives_way: GiveWay | None = None
    is_given_way: GiveWay | None = None
    clock: Clock = field(default_factory=RealClock)
