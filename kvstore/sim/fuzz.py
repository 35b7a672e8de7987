"""Random engines on a shadow memory: what a seed does, it does again.

What is checked, all along: every invariant of the store, every byte that an engine reads, that
no transfer and no grant touches a frame still in use; now and then, that room promised by
`frames_short == 0` comes; in the end, that whoever waits is served, that nothing is left held
and that all that is cached can be evicted.
"""

import random

from kvstore.core.effects import AllocateResult, StepAnswer, SwapResult
from kvstore.core.errors import PoolQuarantined
from kvstore.core.events import Detach, Operation, Step, TethersClosed
from kvstore.core.types import Outcome, SequenceState, StepNumber
from kvstore.sim.ops import allocate, free
from kvstore.sim.random_engine import Line, RandomEngine, Texts
from kvstore.sim.world import BLOCK_TOKENS, World, make_store
from kvstore.sim.wrong import Wrong, expect

__all__ = ["Fuzz", "fuzz"]

# More rounds of freeing what is resident than any run has sequences.
ROUNDS_MAX = 200


class Fuzz:
    """One run: engines come, work, die, go silent and leave, on links that may fail."""

    def __init__(
        self,
        seed: int,
        *,
        fail_share: float = 0.1,
        engines: int = 2,
        lag: int = 2,
        gpu_frames: int = 16,
        cpu_frames: int = 0,
        disk_frames: int = 0,
        transfer_blocks_max: int = 32,
    ) -> None:
        store = make_store(
            gpu_frames=gpu_frames,
            cpu_frames=cpu_frames,
            disk_frames=disk_frames,
            transfer_blocks_max=transfer_blocks_max,
        )
        self.world = World(store, seed, fail_share)
        self.random = self.world.random
        self.texts = Texts(random.Random(seed))
        self.engines_most, self.lag_most = engines, lag
        self.gpu_frames = gpu_frames
        self.engines: list[RandomEngine] = []
        # Engines whose lease has run out while their processes and their work live on.
        self.silent: list[RandomEngine] = []
        self._last_number = 0

    def run(self, steps: int) -> World:
        for _ in range(steps):
            self.turn()
        while self.silent:
            self._silent_step(self.silent[0])
        self.serve_all()
        for engine in self.engines:
            engine.run_work(engine.step)
            self._close_tethers(engine)
        self.world.drain()
        self.world.check_nothing_held()
        self._take_all()
        return self.world

    def turn(self) -> None:
        rng = self.random
        if len(self.engines) < self.engines_most and rng.random() < 0.2:
            self._attach()
        for engine in list(self.engines):
            if engine in self.engines:
                self._engine_step(engine)
        for _ in range(rng.randrange(4)):
            if self.world.under_way:
                self.world.end_one()
        if self.silent and rng.random() < 0.3:
            self._silent_step(self.silent[0])
        if rng.random() < 0.02:
            self.keep_promises()
        self.world.tick(0.05)

    def _attach(self) -> None:
        self._last_number += 1
        lag = self.random.randrange(self.lag_most + 1)
        try:
            self.engines.append(RandomEngine(self.world, self.texts, self._last_number, lag))
        except PoolQuarantined:
            expect(self.silent, "an engine is refused though none is silent")

    def _engine_step(self, engine: RandomEngine) -> None:
        chance = self.random.random()
        if chance < 0.01:
            # Killed: work that has not run never will.
            engine.run_work(engine.completed)
            self._close_tethers(engine)
            self.engines.remove(engine)
        elif chance < 0.015:
            for _ in range(13):
                self.world.tick(0.9)
            self.silent += self.engines
            self.engines.clear()
        elif chance < 0.02:
            engine.run_work(engine.step)
            self.world.handle(Detach(time=self.world.time, engine=engine.id))
            self.engines.remove(engine)
        else:
            engine.random_step()

    def _silent_step(self, engine: RandomEngine) -> None:
        engine.run_work(min(engine.step, engine.completed + 1))
        if engine.completed == engine.step:
            self._close_tethers(engine)
            self.silent.remove(engine)

    def _close_tethers(self, engine: RandomEngine) -> None:
        self.world.pending.pop(engine.number, None)
        self.world.handle(TethersClosed(time=self.world.time, engine=engine.id))

    # ------------------------------------------------------------------------- liveness

    def settle(self) -> None:
        """All that is in flight ends."""
        for engine in self.engines:
            engine.run_work(engine.step)
            engine.keep_alive()
        self.world.drain()

    def keep_promises(self) -> None:
        """Room is on its way, says frames_short == 0: then it is there when all has ended."""
        for engine in list(self.engines):
            for line in list(engine.lines.values()):
                if line.id in engine.lines and line.state in (SequenceState.DROPPED, SequenceState.SWAPPED):
                    self._keep_promise(engine, line)

    def _keep_promise(self, engine: RandomEngine, line: Line) -> None:
        # Those who stand ahead in the queue and don't ask any more hold nobody up.
        self.world.tick(1.1)
        for _ in range(3):
            self.settle()
            (result,) = engine.take_step([engine.ask_back(line)]).results
            if not isinstance(result, AllocateResult | SwapResult):
                return
            if result.outcome is not Outcome.LATER or result.frames_short:
                return
        raise Wrong(f"no room comes for sequence {line.id} of engine {engine.number}")

    def serve_all(self) -> None:
        """Every sequence comes back, when those that are resident make way: nobody waits for ever."""
        for _ in range(ROUNDS_MAX):
            lines = [line for engine in self.engines for line in engine.lines.values()]
            if not lines:
                return
            for engine in self.engines:
                operations: list[Operation] = []
                for line in list(engine.lines.values()):
                    if line.state is SequenceState.RESIDENT:
                        operations.append(free(line.id))
                    elif line.state is not SequenceState.SWAPPING_IN:
                        operations.append(engine.ask_back(line))
                engine.take_step(operations)
            self.settle()
            self.world.tick(0.1)
        states = [
            (engine.number, line.id, line.state.name)
            for engine in self.engines
            for line in engine.lines.values()
        ]
        raise Wrong(f"sequences that are never served: {states}")

    def _take_all(self) -> None:
        """With nobody else there, one engine can have the whole GPU tier."""
        last = RandomEngine(self.world, self.texts, self._last_number + 1, 0)
        effects = self.world.handle(
            Step(
                time=self.world.time,
                engine=last.id,
                step=StepNumber(1),
                completed_step=StepNumber(0),
                operations=(allocate(1, self.gpu_frames * BLOCK_TOKENS),),
            )
        )
        (result,) = effects.answer.results if isinstance(effects.answer, StepAnswer) else ()
        granted = isinstance(result, AllocateResult) and result.outcome is Outcome.OK
        expect(granted, f"an engine by itself can't have the GPU tier: {result}")
        self.world.handle(Detach(time=self.world.time, engine=last.id))
        self.world.drain()
        self.world.check_nothing_held()
        self.world.check_evictable()


def fuzz(seed: int, steps: int = 200, **sizes: int) -> World:
    return Fuzz(seed, **sizes).run(steps)
