"""A run from beginning to end, and what it found, if anything."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kvstore.sim.config import SimConfig, draw_config
from kvstore.sim.records import Log
from kvstore.sim.schedule import Stimulus, draw_schedule
from kvstore.sim.simulation import START, Simulation
from kvstore.sim.wrong import Place, Wrong

__all__ = ["Failure", "Passed", "attempt", "attempt_seed"]

# Of a message, numbers aside: enough to tell one failure from another.
SIGN_LENGTH = 60


@dataclass(frozen=True, slots=True)
class Passed:
    """Events that the store has handled, and blocks that were read and found right."""

    events: int
    reads: int


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong, after how many entries of which schedule."""

    config: SimConfig
    schedule: tuple[Stimulus, ...]
    error: Exception
    turns: int
    log: Log

    @property
    def message(self) -> str:
        return (
            self.error.message
            if isinstance(self.error, Wrong)
            else f"{type(self.error).__name__}: {self.error}"
        )

    @property
    def places(self) -> tuple[Place, ...]:
        return self.error.places if isinstance(self.error, Wrong) else ()

    @property
    def sign(self) -> str:
        """The same for runs that fail in the same way."""
        return type(self.error).__name__ + re.sub(r"\d+", "#", self.message)[:SIGN_LENGTH]


def attempt(config: SimConfig, schedule: Sequence[Stimulus]) -> Passed | Failure:
    simulation = Simulation(config, schedule)
    try:
        world = simulation.run()
    except Exception as error:
        # Whatever comes out of the store is a finding: it has no business to raise anything here.
        return Failure(config, tuple(schedule), error, simulation.turns, simulation.world.log)
    return Passed(world.events, world.shadow.reads)


def attempt_seed(seed: int, turns: int, **given: object) -> Passed | Failure:
    config = draw_config(seed, **given)
    return attempt(config, draw_schedule(config, turns, START))
