"""How short of room each tier is, as engines are told."""

from msgspec import Struct

from kvstore.core.admission import Admission
from kvstore.core.blocks import NO_FRAME
from kvstore.core.memory import Memory
from kvstore.core.types import CPU, DISK, GPU, Pressure, Tier
from kvstore.core.watermarks import MARKED_TIERS

__all__ = ["PressureGauge"]

# Nobody needs to know more often.
INTERVAL_SECONDS = 0.1


class _Look(Struct):
    """Frames that were busy, and what may have changed it until then (`PressureGauge._changes`)."""

    busy: int = 0
    more: int = 0
    fewer: int = 0


class PressureGauge:
    """LOW, HIGH above the high watermark until below the low one, FULL while somebody waits.

    Counts frames that can't be given up at once. Of the disk tier every block can be. To count looks at every
    frame of the tier, so it is only done where what has happened since the last time may matter.
    """

    def __init__(self, memory: Memory, admission: Admission) -> None:
        self._memory = memory
        self._admission = admission
        self._looked: float | None = None
        self._counted = {tier: _Look() for tier in MARKED_TIERS}
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
        for tier in MARKED_TIERS:
            pressure = self._pressure(tier)
            if tier is GPU and waiting:
                pressure = Pressure.FULL
            if pressure is not self.pressure[tier]:
                self.pressure[tier] = pressure
                changed.append(tier)
        return changed

    def busy_bounds(self, tier: Tier) -> tuple[int, int]:
        """Between which two numbers that of busy frames is: as it was counted last, and what has happened
        since."""
        counted = self._counted[tier]
        more, fewer = self._changes(tier)
        return counted.busy - (fewer - counted.fewer), counted.busy + (more - counted.more)

    def count_busy(self, tier: Tier) -> int:
        """Frames of the GPU that an engine may still touch; of the CPU tier those that swapped sequences
        claim and the disk does not have, or that are still to be filled."""
        blocks, rows = self._memory.blocks, self._memory.pools[tier].owned()
        if tier is GPU:
            return int(blocks.in_use(rows).sum())
        claimed = (blocks.claims[rows] > 0) & (blocks.frame[DISK][rows] == NO_FRAME)
        return int((claimed | ~blocks.valid[CPU][rows]).sum())

    def _pressure(self, tier: Tier) -> Pressure:
        frame_count, marks = self._memory.pools[tier].frame_count, self._memory.watermarks[tier]
        if not frame_count:
            return Pressure.LOW
        least, most = self.busy_bounds(tier)
        was_low = self.pressure[tier] is Pressure.LOW
        if was_low and most / frame_count < marks.high:
            return Pressure.LOW
        if not was_low and least / frame_count >= marks.low:
            return Pressure.HIGH
        busy = self.count_busy(tier)
        self._counted[tier] = _Look(busy, *self._changes(tier))
        share = busy / frame_count
        if share >= marks.high:
            return Pressure.HIGH
        if share < marks.low:
            return Pressure.LOW
        return Pressure.LOW if was_low else Pressure.HIGH

    def _changes(self, tier: Tier) -> tuple[int, int]:
        """Since the start: how many frames have become busy, and how many ceased to be, at the most. One that
        has become it twice counts twice."""
        blocks, (_, cpu, disk) = self._memory.blocks, self._memory.pools
        if tier is GPU:
            return blocks.refs_begun, blocks.refs_ended
        more = blocks.claims_begun + cpu.taken_count + disk.given_count
        fewer = blocks.claims_ended + cpu.given_count + disk.taken_count + blocks.frames_filled[CPU]
        return more, fewer
