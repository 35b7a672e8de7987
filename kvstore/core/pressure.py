"""How short of room each tier is, as engines are told."""

from kvstore.core.admission import Admission
from kvstore.core.blocks import NO_FRAME
from kvstore.core.memory import Memory
from kvstore.core.types import CPU, DISK, GPU, Pressure, Tier

__all__ = ["PressureGauge"]

# Looking at all frames costs tens of microseconds; nobody needs to know more often.
INTERVAL_SECONDS = 0.1


class PressureGauge:
    """LOW, HIGH above the high watermark until below the low one, FULL while somebody waits.

    Counts frames that can't be given up at once. Of the disk tier every block can be.
    """

    def __init__(self, memory: Memory, admission: Admission) -> None:
        self._memory = memory
        self._admission = admission
        self._looked: float | None = None
        self.pressure = [Pressure.LOW for _ in Tier]

    def look_again(self) -> None:
        """The watermarks have changed."""
        self._looked = None

    def changes(self, time: float) -> list[Tier]:
        """Tiers whose pressure has changed since it was last asked for."""
        waiting = self._admission.is_waiting(time)
        was_waiting = self.pressure[GPU] is Pressure.FULL
        if self._looked is not None and time - self._looked < INTERVAL_SECONDS and waiting == was_waiting:
            return []
        self._looked = time
        changed: list[Tier] = []
        for tier in (GPU, CPU):
            pressure = self._pressure(tier)
            if tier is GPU and waiting:
                pressure = Pressure.FULL
            if pressure is not self.pressure[tier]:
                self.pressure[tier] = pressure
                changed.append(tier)
        return changed

    def _pressure(self, tier: Tier) -> Pressure:
        pool, blocks = self._memory.pools[tier], self._memory.blocks
        if not pool.frame_count:
            return Pressure.LOW
        rows = pool.owned()
        if tier is GPU:
            busy = blocks.in_use(rows)
        else:
            claimed = (blocks.claims[rows] > 0) & (blocks.frame[DISK][rows] == NO_FRAME)
            busy = claimed | ~blocks.valid[tier][rows]
        share, marks = int(busy.sum()) / pool.frame_count, self._memory.watermarks[tier]
        if share >= marks.high:
            return Pressure.HIGH
        if share < marks.low:
            return Pressure.LOW
        return Pressure.LOW if self.pressure[tier] is Pressure.LOW else Pressure.HIGH
