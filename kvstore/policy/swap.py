"""Drop or swap by length: computing a short sequence again costs less than moving it twice."""

from dataclasses import dataclass

from kvstore.core.ports import Departure, Restore, Verdict
from kvstore.core.types import DISK, GPU, LinkCost, StepTiming

__all__ = ["LengthThreshold", "load_all"]


@dataclass(frozen=True, slots=True)
class LengthThreshold:
    """Sequences of at most `drop_tokens_max` tokens are dropped, longer ones swapped out. It asks for no
    costs, so all that is found below the GPU is loaded, and none that is parked is held."""

    drop_tokens_max: int

    def note_timings(self, timings: tuple[StepTiming, ...], time: float) -> None:
        pass

    def set_costs(self, block_bytes: int, links: tuple[LinkCost, ...]) -> None:
        pass

    def leave(self, departure: Departure) -> Verdict:
        tokens = departure.tokens
        return Verdict(
            keeps=tokens > self.drop_tokens_max,
            reason="by length",
            inputs=(("tokens", float(tokens)), ("drop_tokens_max", float(self.drop_tokens_max))),
        )

    def load(self, restore: Restore) -> Verdict | None:
        return load_all(restore, "by length nothing is weighed against computing it again")

    def hold_seconds(self, departure: Departure, pressed_share: float) -> float:
        return 0.0


def load_all(restore: Restore, reason: str) -> Verdict:
    """Nothing is weighed: all that is found is worth having."""
    counts = [(tier, count) for tier, count in restore.runs if tier is not GPU]
    loads = sum(count for _, count in counts)
    return Verdict(
        keeps=True,
        blocks=sum(count for _, count in restore.runs),
        loads=loads,
        other_loads=loads,
        reason=reason,
        inputs=(
            ("tokens", float(restore.tokens)),
            ("blocks_loaded", float(loads)),
            ("blocks_read", float(sum(count for tier, count in counts if tier is DISK))),
            ("compute_tokens", 0.0),
        ),
    )
