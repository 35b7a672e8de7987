"""A run from beginning to end, and what it found, if anything."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kvstore.policy.choices import EVICTION_DEFAULT
from kvstore.sim.config import SimConfig, draw_config
from kvstore.sim.records import Log
from kvstore.sim.schedule import Stimulus, draw_schedule
from kvstore.sim.simulation import START, Simulation
from kvstore.sim.stores import EVICTIONS
from kvstore.sim.wrong import Place, Wrong

__all__ = ["LONG", "Failure", "Passed", "attempt", "attempt_seed", "attempt_world"]

# Of so many seeds the last is a longer world, so many times as long.
LONG_EVERY, TIMES_LONGER = 8, 4
# There chats come back under the policy that learns from it, and time passes now and then.
LONG: dict[str, object] = {
    "eviction": EVICTIONS.index(EVICTION_DEFAULT),
    "chat_share": 0.5,
    "pause_share": 0.01,
}

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


def attempt_world(seed: int, turns: int) -> Passed | Failure:
    """One of the worlds that there are by seed: of many, some are longer."""
    if seed % LONG_EVERY == LONG_EVERY - 1:
        return attempt_seed(seed, turns * TIMES_LONGER, **LONG)
    return attempt_seed(seed, turns)
