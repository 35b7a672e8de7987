"""How full a tier may be: its watermarks, which may be set while the store runs."""

from collections.abc import Sequence

from kvstore.core.config import StoreConfig
from kvstore.core.errors import FieldInvalid
from kvstore.core.types import CPU, GPU, Tier, Watermarks

__all__ = ["MARKED_TIERS", "WatermarkTable", "check_watermarks"]

# Of the disk tier every block can be given up at once, so it is never short of room.
MARKED_TIERS = (GPU, CPU)


class WatermarkTable:
    """Each tier begins with those of the configuration.

    What they are for: engines are told of a tier's pressure by them; of the GPU's frames, so many are left
    to what runs; of the CPU's, when that many can't be given up without loss, writes to disk hurry.
    """

    def __init__(self, config: StoreConfig) -> None:
        self._by_tier = {
            GPU: Watermarks(tier=GPU, high=config.high_watermark, low=config.low_watermark),
            CPU: Watermarks(tier=CPU, high=config.cpu_high_watermark, low=config.cpu_low_watermark),
        }

    def __getitem__(self, tier: Tier) -> Watermarks:
        return self._by_tier[tier]

    def set(self, watermarks: Sequence[Watermarks]) -> None:
        """All of them, or none where one is refused."""
        check_watermarks(watermarks)
        self._by_tier.update({each.tier: each for each in watermarks})


def check_watermarks(watermarks: Sequence[Watermarks]) -> None:
    """Raises FieldInvalid, which names the field as `UpdateLimits` has it."""
    for each in watermarks:
        name = each.tier.name.lower()
        if each.tier not in MARKED_TIERS:
            raise FieldInvalid(
                "this tier has no watermarks",
                field=f"limits.high_watermark[{name}]",
                value=each.high,
                remedy="one of " + ", ".join(tier.name.lower() for tier in MARKED_TIERS),
            )
        # NaN is in no order with anything, so it fails here too.
        if not 0 < each.high <= 1:
            raise FieldInvalid(
                "not a share",
                field=f"limits.high_watermark[{name}]",
                value=each.high,
                remedy="above 0, at most 1",
            )
        if not 0 < each.low <= each.high:
            raise FieldInvalid(
                "watermarks out of order",
                field=f"limits.low_watermark[{name}]",
                value=each.low,
                remedy=f"above 0, at most the high one, {each.high:g}",
            )
