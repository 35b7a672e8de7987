"""CPU frames of reads that did not end in time: the device may still write into them.

Such a frame is nobody's until the device has let go of it, so a slow device costs frames and never
bytes. It must not cost all of them either: when it holds as many as are kept for the passage from the
disk, nothing more is read before it gives some back.
"""

from kvstore.core.blocks import Rows
from kvstore.core.config import StoreConfig
from kvstore.core.errors import check
from kvstore.core.memory import Memory
from kvstore.core.types import CPU, TransferId

__all__ = ["LateFrames"]


class LateFrames:
    def __init__(self, config: StoreConfig, memory: Memory) -> None:
        self._memory = memory
        self._frames_max = config.cpu_frames_reserved
        # By transfer and position in it.
        self._frames: dict[TransferId, dict[int, int]] = {}
        self.count = 0

    @property
    def too_many(self) -> bool:
        """Whether reads are to fail at once: the device is stuck, and there is no room for more."""
        return self.count > 0 and self.count >= self._frames_max

    def keep(self, transfer: TransferId, positions: tuple[int, ...], rows: Rows) -> None:
        """The blocks' CPU frames are theirs no more, and nobody else's yet."""
        frames = self._memory.replicas.withhold(CPU, rows)
        self._frames[transfer] = dict(zip(positions, frames.tolist(), strict=True))
        self.count += rows.size

    def give_back(self, transfer: TransferId, positions: tuple[int, ...]) -> None:
        known = self._frames.get(transfer, {})
        check(known.keys() >= set(positions), f"frames of transfer {transfer} came back that were not late")
        check(len(set(positions)) == len(positions), f"a frame of transfer {transfer} came back twice")
        self._memory.pools[CPU].restore([known.pop(position) for position in positions])
        self.count -= len(positions)
        if not known:
            self._frames.pop(transfer, None)

    def frames(self) -> list[int]:
        return [frame for by_position in self._frames.values() for frame in by_position.values()]
