"""A swap policy that says what the test wants, and sequences that leave by it."""

from dataclasses import dataclass, field

from kvstore.core.explaining import DecisionQuery, Told
from kvstore.core.operations import Decision
from kvstore.core.ports import Departure, Restore, Verdict
from kvstore.core.store import Store
from kvstore.core.types import (
    LinkCost,
    StepTiming,
    SwapMode,
)
from kvstore.policy.eviction import Lru
from tests.core.caller import Caller
from tests.core.ops import swap_out
from tests.core.world import World, make_store, text


@dataclass
class Word:
    """A policy that says what the test wants, and notes what it was told."""

    keeps: bool = True
    # How many blocks to load; None: it weighs nothing.
    loads: int | None = None
    hold: float = 0.0
    departures: list[Departure] = field(default_factory=list)
    restores: list[Restore] = field(default_factory=list)
    timings: list[StepTiming] = field(default_factory=list)
    costs: tuple[LinkCost, ...] = ()

    def note_timings(self, timings: tuple[StepTiming, ...], time: float) -> None:
        self.timings += timings

    def set_costs(self, block_bytes: int, links: tuple[LinkCost, ...]) -> None:
        self.costs = links

    def leave(self, departure: Departure) -> Verdict:
        self.departures.append(departure)
        return Verdict(keeps=self.keeps, seconds=1.0, other_seconds=2.0, inputs=(("word", 1.0),))

    def load(self, restore: Restore) -> Verdict | None:
        self.restores.append(restore)
        blocks = sum(count for _, count in restore.runs)
        if self.loads is None:
            return None
        return Verdict(
            keeps=self.loads == blocks,
            blocks=self.loads,
            loads=self.loads,
            other_loads=blocks if self.loads < blocks else 0,
            other_is_whole=self.loads < blocks,
            seconds=3.0,
            other_seconds=4.0,
        )

    def hold_seconds(self, departure: Departure, pressed_share: float) -> float:
        return self.hold


def caller_with(word: Word, **sizes: int) -> Caller:
    config = make_store(**({"gpu_frames": 8, "cpu_frames": 16} | sizes)).config
    return Caller(World(Store(config, Lru(), word)))


def written(caller: Caller, sequence: int, token_count: int) -> tuple[int, ...]:
    tokens = text(sequence, token_count)
    caller.allocate(sequence, token_count)
    caller.write(caller.table(sequence), tokens)
    return tokens


def leave(caller: Caller, sequence: int, filled_tokens: int) -> None:
    caller.step(swap_out(sequence, filled_tokens, SwapMode.AUTO))


def decisions(caller: Caller, **query: object) -> list[Decision]:
    return [each.decision for each in told(caller, **query)]


def told(caller: Caller, **query: object) -> list[Told]:
    """All that is asked for, the latest first."""
    return list(caller.world.store.explaining.find(DecisionQuery(**query)))  # type: ignore[arg-type]
