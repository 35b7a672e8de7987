"""One run: engines come, work, hang, die and leave, the service crashes, on links and disks that fail."""

import random
from collections.abc import Sequence

from kvstore.core.calls import Detach, Drain
from kvstore.core.errors import Draining, EngineExpired, PoolQuarantined, TooManyEngines
from kvstore.core.events import TethersClosed, Tick
from kvstore.core.types import EngineState
from kvstore.sim.clock import Clock
from kvstore.sim.config import SimConfig
from kvstore.sim.costs import Costs
from kvstore.sim.emptying import take_all
from kvstore.sim.engine import SimEngine
from kvstore.sim.forgets import Forgets
from kvstore.sim.habits import Habits
from kvstore.sim.links import TimedLinks
from kvstore.sim.promises import keep_promises, serve_all
from kvstore.sim.records import Happened
from kvstore.sim.schedule import Kind, Stimulus
from kvstore.sim.stores import store_of
from kvstore.sim.texts import Texts
from kvstore.sim.world import World
from kvstore.sim.wrong import Wrong, expect

__all__ = ["Simulation"]

START = 100.0
TICK_SECONDS = 0.1


class Simulation:
    """The world, its clock, and who works in it."""

    def __init__(self, config: SimConfig, schedule: Sequence[Stimulus]) -> None:
        self.config = config
        self.clock = Clock()
        self.links = TimedLinks(config, self.clock)
        self.world = World(
            store_of(config),
            config.seed,
            rank_count=config.ranks,
            carrier=self.links,
            watched=config.watched,
        )
        self.texts = Texts()
        self.forgets = Forgets(self.world, config.namespaces)
        # By place: the engine that works there.
        self.engines: dict[int, SimEngine] = {}
        # Engines that are dead or silent, while a process of theirs still maps the pools.
        self.leaving: list[SimEngine] = []
        self._schedule = list(reversed(schedule))
        self._last_number = 0
        self._draining = False
        # Entries of the schedule that have been met, the one that is being met included.
        self.turns = 0
        self.costs = Costs(self.world, config)
        self.world.time = START
        self.clock.at(START, self._tick)

    def turn(self) -> bool:
        """The next entry of the schedule; False where there is none left."""
        if not self._schedule:
            return False
        stimulus = self._schedule.pop()
        self.turns += 1
        self.clock.run_until(self.world, stimulus.time)
        self._meet(stimulus, random.Random(f"{self.config.seed} {stimulus.seed}"))
        return True

    def run(self) -> World:
        """All of it, and then the end: everybody is served, leaves, and nothing is left held."""
        while self.turn():
            pass
        for place, engine in list(self.engines.items()):
            if engine.hangs_until > self.world.time or not self._is_attached(engine):
                self.leaving.append(self.engines.pop(place))
        for engine in list(self.leaving):
            self.close_tethers(engine)
        self._end_drain()
        engines = list(self.engines.values())
        serve_all(self.world, engines, self.world.random)
        self.engines.clear()
        for engine in engines:
            engine.run_work(engine.step)
            self.leaving.append(engine)
            self.close_tethers(engine)
        self.world.drain()
        self.world.check_nothing_held()
        self.links.faults = False
        self.forgets.finish()
        take_all(self.world, self.texts, self._last_number + 1)
        self.world.check_nothing_held()
        return self.world

    def _tick(self) -> None:
        self.world.handle(Tick(time=self.world.time))
        self.costs.tick()
        self.forgets.ask()
        self.clock.at(self.world.time + TICK_SECONDS, self._tick)

    def _meet(self, stimulus: Stimulus, rng: random.Random) -> None:
        engine = self.engines.get(stimulus.place)
        match stimulus.kind:
            case Kind.TURN if engine is None:
                self._attach(stimulus.place, rng)
            case Kind.TURN if engine is not None:
                self._turn(engine, stimulus.place, rng)
            case Kind.KILL if engine is not None:
                self._note(f"engine {engine.number}: a process is killed")
                del self.engines[stimulus.place]
                self._close_soon(engine, rng)
            case Kind.SILENCE if engine is not None:
                self._note(f"engine {engine.number} hangs")
                engine.hangs_until = self.world.time + rng.uniform(0.2, 3) * engine.attach.lease_seconds
            case Kind.DETACH if engine is not None and engine.hangs_until <= self.world.time:
                del self.engines[stimulus.place]
                engine.run_work(engine.step)
                engine.stop()
                self.world.handle(Detach(time=self.world.time, engine=engine.id))
                # One whose lease has run out unseen is known by its tethers still.
                self.leaving.append(engine)
                self.close_tethers(engine)
            case Kind.RESTART:
                self.restart(rng)
            case Kind.PAUSE:
                self._note("the service is stopped, and goes on")
                self.world.time += rng.uniform(0.5, 20)
            case Kind.DISK_FULL:
                self._note("the disk is full for a while")
                self.links.disk_full_until = self.world.time + rng.uniform(0.05, 2)
            case Kind.FLIP if len(self.world.shadow.disk):
                key = self.world.shadow.disk.flip(rng.randrange(len(self.world.shadow.disk)))
                self._note(f"a bit of block {key.key.hex()[:8]} on disk changes")
            case Kind.DRAIN:
                self._note("the service is drained")
                self._draining = True
                self.world.handle(Drain(time=self.world.time))
                self.clock.at(self.world.time + rng.uniform(0, 2), self._end_drain)
            case Kind.FORGET:
                self._note(self.forgets.begin(rng, self._last_number))
            case Kind.SCRUB:
                self._scrub(rng)
            case Kind.AUDIT:
                self._audit()
            case _:
                pass

    def _audit(self) -> None:
        """Not while somebody's silence, which has not been noticed yet, holds frames back, nor while what is
        new gets none."""
        dead = any(self._is_attached(engine) for engine in self.leaving)
        hanging = any(engine.hangs_until > self.world.time for engine in self.engines.values())
        if not dead and not hanging and not self._draining:
            keep_promises(self.world, [each for each in self.engines.values() if self._is_attached(each)])

    def _end_drain(self) -> None:
        if self._draining:
            self._draining = False
            self.world.handle(Drain(time=self.world.time, on=False))

    def _scrub(self, rng: random.Random) -> None:
        """What the disk finds bad it drops at once; the store hears of it a little later."""
        lost, store = self.world.shadow.disk.scrub(), self.world.store
        if not lost:
            return
        self._note(f"the disk finds {len(lost)} blocks bad, and drops them")

        def tell() -> None:
            # A service that has started since has not found them.
            if self.world.store is store:
                self.world.lose(lost)

        self.clock.at(self.world.time + rng.uniform(0, 0.1), tell)

    def _note(self, what: str) -> None:
        self.world.log.append(Happened(self.world.time, what))

    # -------------------------------------------------------------------------- engines

    def _attach(self, place: int, rng: random.Random) -> None:
        """Whoever died there may be some time in coming back."""
        if rng.random() < 0.4:
            return
        self._last_number += 1
        config = self.config
        try:
            engine = SimEngine(
                self.world,
                self._last_number,
                namespace=rng.randint(1, config.namespaces),
                single=rng.random() < config.single_share,
                lease_seconds=rng.uniform(1.5, 4),
                timed=config.by_cost,
            )
        except Draining:
            expect(self._draining, "an engine is refused for a drain, and there is none")
        except PoolQuarantined:
            held = any(each.state is EngineState.EXPIRED for each in self.world.store.usage().engines)
            expect(held, "an engine is refused for frames of others, and none is silent")
        except TooManyEngines as error:
            raise Wrong(f"an engine is refused: {error}") from error
        else:
            self.engines[place] = engine

    def _turn(self, engine: SimEngine, place: int, rng: random.Random) -> None:
        if engine.hangs_until > self.world.time:
            return
        if not self._is_attached(engine):
            self._find_out(engine)
            del self.engines[place]
            self._close_soon(engine, rng)
        elif engine.step - engine.completed > self.config.lag:
            engine.keep_alive()
        else:
            Habits(engine, self.texts, rng, self.config.chat_share).turn()
            if not engine.single:
                engine.run_later(self.clock, rng, 10 ** rng.uniform(-3, -1))

    def _is_attached(self, engine: SimEngine) -> bool:
        engines = self.world.store.usage().engines
        return any(each.engine == engine.id and each.state is EngineState.ATTACHED for each in engines)

    def _find_out(self, engine: SimEngine) -> None:
        """It has been silent for longer than its lease, and learns it with its next call."""
        expect(engine.hangs_until, f"engine {engine.number} has lost its lease, and was never silent")
        try:
            engine.keep_alive()
        except EngineExpired:
            return
        raise Wrong(f"engine {engine.number} has expired, and its call is taken")

    def _close_soon(self, engine: SimEngine, rng: random.Random) -> None:
        """Its other ranks work on for a while, before the last tether closes."""
        self.leaving.append(engine)
        if rng.random() < 0.5:
            self.close_tethers(engine)
        else:
            self.clock.at(self.world.time + rng.uniform(0, 1), lambda: self.close_tethers(engine))

    def close_tethers(self, engine: SimEngine) -> None:
        if engine in self.leaving:
            self.leaving.remove(engine)
            engine.stop()
            self.world.handle(TethersClosed(time=self.world.time, engine=engine.id))

    # ----------------------------------------------------------------------- the service

    def restart(self, rng: random.Random) -> None:
        """Killed and started again: of all there was only what lies on disk is left."""
        self._note("the service is killed, and starts again")
        for engine in [*self.engines.values(), *self.leaving]:
            engine.stop()
        self.engines.clear()
        self.leaving.clear()
        self._draining = False
        self.links.crash(self.world, rng)
        self.forgets.crash()
        # Its disk may be given more or less than before.
        self.world.restart(store_of(self.config, rng.choice([1.0, 1.0, 0.5, 1.5])))
