"""What every run must come to: room that was promised comes, and nobody waits for ever."""

import random
from collections.abc import Collection

from kvstore.core.operations import AllocateResult, Operation, SwapResult
from kvstore.core.types import Outcome, SequenceState
from kvstore.sim.engine import SimEngine
from kvstore.sim.line import Line
from kvstore.sim.ops import free
from kvstore.sim.verbs import ask_back
from kvstore.sim.world import World
from kvstore.sim.wrong import Wrong

__all__ = ["keep_promises", "serve_all"]

# More rounds of freeing what is resident than any run has sequences.
ROUNDS_MAX = 200
WAITING = (SequenceState.DROPPED, SequenceState.SWAPPED)


def keep_promises(world: World, engines: Collection[SimEngine]) -> None:
    """Room is on its way, says frames_short == 0: then it is there when all has ended."""
    for engine in engines:
        for line in list(engine.lines.values()):
            if line.id in engine.lines and line.state in WAITING:
                _keep_promise(world, engines, engine, line)


def serve_all(world: World, engines: Collection[SimEngine], rng: random.Random) -> None:
    """Every sequence comes back, when those that are resident make way: nobody waits for ever."""
    for _ in range(ROUNDS_MAX):
        if not any(engine.lines for engine in engines):
            return
        for engine in engines:
            operations: list[Operation] = []
            for line in list(engine.lines.values()):
                if line.state is SequenceState.RESIDENT:
                    operations.append(free(line.id))
                elif line.state is not SequenceState.SWAPPING_IN:
                    operations.append(ask_back(line, rng))
            engine.call(operations)
        _settle(world, engines)
        world.tick(0.1)
    waiting = ", ".join(
        f"{engine.label(line.id)} ({line.state.name})" for engine in engines for line in engine.lines.values()
    )
    raise Wrong(f"sequences that are never served: {waiting}")


def _keep_promise(world: World, engines: Collection[SimEngine], engine: SimEngine, line: Line) -> None:
    # Those who stand ahead in the queue and don't ask any more hold nobody up.
    world.tick(1.1)
    for _ in range(3):
        _settle(world, engines)
        (result,) = engine.call([ask_back(line, world.random)])
        if not isinstance(result, AllocateResult | SwapResult):
            return
        if result.outcome is not Outcome.LATER or result.frames_short:
            return
    raise Wrong(f"no room comes for {engine.label(line.id)}, though none is short")


def _settle(world: World, engines: Collection[SimEngine]) -> None:
    """All that is in flight ends."""
    for engine in engines:
        engine.run_work(engine.step)
        engine.keep_alive()
    world.drain()
