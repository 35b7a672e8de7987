"""What moving and computing costs in a run, as the store is told: it changes, so that both pay at times.

What is told need not be what is so. The store may decide badly by it, but never wrongly.
"""

import random

from kvstore.core.calls import SetCosts
from kvstore.core.store import Store
from kvstore.core.types import LinkCost, StepNumber, StepTiming
from kvstore.sim.config import SimConfig
from kvstore.sim.world import World

__all__ = ["Costs", "Timings"]

# Of prefill: a step by itself, a token, and a token of context.
STEP_SECONDS, TOKEN_SECONDS, CONTEXT_SECONDS = 1e-3, 2e-3, 1e-5
CHANGE_SHARE = 0.3
TOLD_TIMES = 4


class Costs:
    """Of the links; told again from time to time, by factors of hundreds."""

    def __init__(self, world: World, config: SimConfig) -> None:
        self._world = world
        self._config = config
        # A store that has just started is told at once.
        self._told: Store | None = None

    def tick(self) -> None:
        if not self._config.by_cost:
            return
        now = self._world.time
        rng = random.Random(f"{self._config.seed} costs {now!r}")
        changes = rng.random() < CHANGE_SHARE
        if not changes and self._told is self._world.store:
            return
        self._told = self._world.store
        factor = 10 ** rng.uniform(-2, 1)
        links = tuple(
            LinkCost(
                source=source,
                target=target,
                bytes_per_second=factor * speed.bandwidth,
                fixed_seconds=speed.latency,
            )
            for (source, target), speed in self._config.links.items()
        )
        self._world.handle(SetCosts(time=now, block_bytes=self._config.block_bytes, links=links))


class Timings:
    """Of an engine's steps: pieces that they prefilled, told once the step is known to have completed."""

    def __init__(self) -> None:
        self._pieces: dict[int, list[tuple[int, int]]] = {}

    def note(self, step: int, before: int, count: int) -> None:
        self._pieces.setdefault(step, []).append((before, count))

    def take(self, completed: int) -> tuple[StepTiming, ...]:
        """Each piece as a step of its own and several times: such short runs tell too little otherwise."""
        told = [step for step in self._pieces if step <= completed]
        timings = [_timing(step, *piece) for step in told for piece in self._pieces.pop(step)]
        return tuple((timings * TOLD_TIMES)[:64])


def _timing(step: int, before: int, tokens: int) -> StepTiming:
    context = before * tokens + tokens * tokens // 2
    return StepTiming(
        step=StepNumber(step),
        prefill_tokens=tokens,
        prefill_context=context,
        elapsed_seconds=STEP_SECONDS + TOKEN_SECONDS * tokens + CONTEXT_SECONDS * context,
    )
