"""A mover whose move is the test's own."""

import queue
from collections.abc import Callable
from typing import Any

from kvstore.core.effects import Transfer
from kvstore.core.types import Frame, Tier, TransferId, Urgency
from kvstore.tiers.mover import Mover
from kvstore.tiers.mover_setup import MoverSetup
from kvstore.tiers.moves import Part, PieceEnd
from kvstore.tiers.pacing import RealClock, TokenBucket

WAIT = 20.0


FRAME = 4096


def transfer(number: int, blocks: int = 4, urgency: Urgency = Urgency.ASKED) -> Transfer:
    frames = tuple(Frame(frame) for frame in range(blocks))
    return Transfer(
        id=TransferId(number),
        source=Tier.CPU,
        target=Tier.GPU,
        source_frames=frames,
        target_frames=frames,
        urgency=urgency,
    )


class House:
    """A mover with a move of the test's own, and all that it tells, in order."""

    def __init__(self, move: Callable[[Part], PieceEnd], **setup) -> None:
        self.told: queue.SimpleQueue[tuple] = queue.SimpleQueue()
        given: dict[str, Any] = {
            "name": "test",
            "move": move,
            "frame_bytes": FRAME,
            "piece_bytes": FRAME,
            "ended": lambda id, failed, late: self.told.put(("ended", id, failed, late)),
            "returned": lambda id, positions: self.told.put(("returned", id, positions)),
            "bucket": TokenBucket(RealClock()),
        }
        self.mover = Mover(MoverSetup(**(given | setup)))

    def next(self) -> tuple:
        return self.told.get(timeout=WAIT)

    def close(self) -> None:
        self.mover.put_stop()
        assert self.mover.join(WAIT)


def nothing(part: Part) -> PieceEnd:
    return PieceEnd()
