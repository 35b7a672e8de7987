"""Hypothesis drives the simulator's world: it draws what engines, links, time and death do, and makes
what fails small. `make soak` gives it a hundred times the budget.
"""

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from msgspec import structs

from kvstore.core.calls import Detach, Step
from kvstore.core.effects import DiskDelete, DiskNote, DiskSync, Effects
from kvstore.core.errors import CheckFailed, PoolQuarantined
from kvstore.core.events import Event, TethersClosed
from kvstore.core.invariants import check_invariants
from kvstore.core.operations import Operation
from kvstore.core.phases import PHASES
from kvstore.core.store import Store
from kvstore.core.types import Activity, EngineState, Retention, SequenceState, StepNumber, SwapMode, Tier
from kvstore.sim.asking import lookup
from kvstore.sim.carrying import Moving
from kvstore.sim.emptying import take_all
from kvstore.sim.engine import SimEngine
from kvstore.sim.line import Line
from kvstore.sim.ops import end_session
from kvstore.sim.promises import keep_promises, serve_all
from kvstore.sim.texts import Texts
from kvstore.sim.verbs import ask_back, begin, commit_full, free_line, grow, preempt, rest, split
from kvstore.sim.world import World
from kvstore.sim.wrong import Wrong
from tests.core.choices import Beginning, Doing, Misfortune, Sizes, Turn, Verb, indices, sizes, works

ENGINES_MAX = 3
LINES_MAX = 6


class Later:
    """Nothing moves before the machine says so."""

    def carry(self, world: World, moving: Moving) -> None:
        pass

    def tell_disk(self, world: World, told: DiskDelete | DiskNote) -> None:
        world.shadow.disk.take(told)

    def before_write(self, world: World, moving: Moving) -> None:
        pass

    def sync(self, world: World, sync: DiskSync) -> None:
        pass


class StoreMachine(RuleBasedStateMachine):
    """Rules say what happens, and how work goes on then; the world checks after every event."""

    @initialize(
        sizes=sizes, ranks=st.integers(1, 3), namespaces=st.lists(st.integers(1, 2), min_size=1, max_size=2)
    )
    def start(self, sizes: Sizes, ranks: int, namespaces: list[int]) -> None:
        self.sizes = sizes
        self.world = World(sizes.make(), rank_count=ranks, carrier=Later())
        self.texts = Texts()
        self.engines: list[SimEngine] = []
        # Engines whose processes are silent or dead, and that map the pools still.
        self.leaving: list[SimEngine] = []
        self.last_number = 0
        for namespace in namespaces:
            self.attach(namespace, False)

    # -------------------------------------------------------------------------- engines

    @rule(namespace=st.integers(1, 2), single=st.booleans(), work=works)
    def one_more(self, namespace: int, single: bool, work: list[Turn]) -> None:
        self.attach(namespace, single)
        self.work_on(work)

    def attach(self, namespace: int, single: bool) -> None:
        if len(self.engines) == ENGINES_MAX:
            return
        self.last_number += 1
        try:
            engine = SimEngine(self.world, self.last_number, namespace=namespace, single=single)
        except PoolQuarantined:
            assert self.leaving
            return
        self.engines.append(engine)

    def engine(self, index: int) -> SimEngine:
        if not self.engines:
            self.close_all_leaving()
            self.attach(1, False)
        return self.engines[index % len(self.engines)]

    def work_on(self, turns: list[Turn]) -> None:
        for turn in turns:
            self.turn(self.engine(turn.engine), turn)

    def turn(self, engine: SimEngine, turn: Turn) -> None:
        operations: list[Operation] = []
        lines = list(engine.lines.values())
        for doing in turn.doings:
            if lines:
                operations += self.do(engine, lines.pop(doing.index % len(lines)), doing)
        for beginning in turn.beginnings[: max(0, LINES_MAX - len(engine.lines))]:
            operations.append(self.begin(engine, beginning))
        engine.call(sorted(operations, key=lambda each: PHASES.index(type(each))))
        if turn.resent:
            engine.resend()
        engine.run_work(min(engine.step, engine.completed + turn.work))
        if turn.told:
            engine.keep_alive()
        for index, rank in turn.moved:
            if self.world.under_way and rank in self.world.shadow.ranks:
                self.world.move(self.world.under_way[index % len(self.world.under_way)], [rank])
        for ending in turn.endings:
            if self.world.under_way:
                ends = self.world.next_ends()
                self.end(ends[ending.index % len(ends)], ending.bad)

    def begin(self, engine: SimEngine, how: Beginning) -> Operation:
        texts = [tuple(line.tokens) for line in engine.lines.values()] + self.texts.known
        old = texts[how.known % len(texts)][: how.kept] if texts else ()
        tokens = [*old, *self.new_tokens(how.more)]
        return begin(engine, tokens, how.tenant, session=how.session, priority=how.priority)

    def do(self, engine: SimEngine, line: Line, doing: Doing) -> list[Operation]:
        if doing.verb is Verb.FREE:
            commits = commit_full(line, 0) if doing.commit else []
            return [*commits, free_line(line, self.texts, list(Retention)[doing.detail % len(Retention)])]
        if not line.running or line.state is not SequenceState.RESIDENT:
            return [ask_back(line, self.world.random)]
        commits = commit_full(line, 0) if doing.commit else []
        if doing.verb is Verb.PREEMPT:
            return [*commits, preempt(line, list(SwapMode)[doing.detail % len(SwapMode)])]
        if doing.verb is Verb.REST:
            return [*commits, rest(line, [Activity.WAITING, Activity.PARKED][doing.detail % 2])]
        if doing.verb is Verb.FORK and line.written == len(line.tokens):
            endings = [tuple(self.new_tokens(1 + doing.detail % 4)) for _ in range(1 + doing.detail % 2)]
            commits.append(split(engine, line, endings))
        return [*commits, grow(line, self.new_tokens(1 + doing.detail % 6), doing.detail % 8)]

    def new_tokens(self, count: int) -> list[int]:
        return [token for _ in range(count) for token in self.texts.new_tokens(self.world.random, 1)]

    @rule(engine=indices, session=st.sampled_from("st"), tenant=st.sampled_from("ab"), work=works)
    def end_session(self, engine: int, session: str, tenant: str, work: list[Turn]) -> None:
        self.engine(engine).call([end_session(session, tenant=tenant)])
        self.work_on(work)

    @rule(engine=indices, known=indices, tenant=st.sampled_from("ab"), work=works)
    def lookup(self, engine: int, known: int, tenant: str, work: list[Turn]) -> None:
        if self.texts.known:
            lookup(self.engine(engine), self.texts.known[known % len(self.texts.known)], tenant)
        self.work_on(work)

    # ----------------------------------------------------------------- transfers and time

    def end(self, moving: Moving, bad: tuple[int, int] | None) -> None:
        """Fails only where nothing has moved yet; a write to disk whole."""
        if bad is not None and not moving.done and not moving.moved:
            count, ranks = len(moving.transfer.source_frames), self.world.shadow.ranks
            places = range(count) if moving.transfer.target is Tier.DISK else [bad[1] % count]
            moving.failed = {(ranks[bad[0] % len(ranks)], place) for place in places}
        self.world.end(moving)

    @rule(work=works)
    def let_all_end(self, work: list[Turn]) -> None:
        for engine in self.engines:
            engine.run_work(engine.step)
            engine.keep_alive()
        self.world.drain()
        self.work_on(work)

    @rule(seconds=st.sampled_from([0.1, 0.9, 30.0]), work=works)
    def wait(self, seconds: float, work: list[Turn]) -> None:
        self.tick(seconds)
        self.work_on(work)

    def tick(self, seconds: float) -> None:
        self.world.tick(seconds)
        for engine in list(self.engines):
            if not self.is_attached(engine):
                self.engines.remove(engine)
                self.leaving.append(engine)

    def is_attached(self, engine: SimEngine) -> bool:
        usage = self.world.store.usage().engines
        return any(each.engine == engine.id and each.state is EngineState.ATTACHED for each in usage)

    # ------------------------------------------------------------- silence, death, damage

    @rule(misfortune=st.sampled_from(Misfortune), index=indices, count=st.integers(0, 4), work=works)
    def meet(self, misfortune: Misfortune, index: int, count: int, work: list[Turn]) -> None:
        self.befall(misfortune, index, count)
        self.work_on(work)

    def befall(self, misfortune: Misfortune, index: int, count: int) -> None:
        match misfortune:
            case Misfortune.SILENCE:
                # Nobody calls for longer than a lease.
                for _ in range(13):
                    self.tick(0.9)
                assert not self.engines
            case Misfortune.DEATH if self.engines:
                self.close(self.engines.pop(index % len(self.engines)))
            case Misfortune.DETACH if self.engines:
                chosen = self.engines.pop(index % len(self.engines))
                chosen.run_work(chosen.step)
                chosen.stop()
                self.world.handle(Detach(time=self.world.time, engine=chosen.id))
            case Misfortune.RESTART:
                self.restart(count)
            case Misfortune.FLIP if len(self.world.shadow.disk):
                self.world.shadow.disk.flip(index % len(self.world.shadow.disk))
            case _:
                pass

    def restart(self, written: int) -> None:
        """The service is killed in the middle of a write."""
        for moving in self.world.moving(Tier.CPU, Tier.DISK):
            if not moving.done:
                self.world.shadow.write(moving.transfer, written)
        for engine in [*self.engines, *self.leaving]:
            engine.stop()
        self.engines.clear()
        self.leaving.clear()
        self.world.restart(self.sizes.make())

    @rule(work=works)
    def clear_away(self, work: list[Turn]) -> None:
        self.close_all_leaving()
        self.work_on(work)

    def close_all_leaving(self) -> None:
        while self.leaving:
            self.close(self.leaving.pop())

    def close(self, engine: SimEngine) -> None:
        engine.stop()
        self.world.handle(TethersClosed(time=self.world.time, engine=engine.id))

    # ------------------------------------------------------------------------- promises

    @rule(work=works)
    def look_for_promised_room(self, work: list[Turn]) -> None:
        keep_promises(self.world, self.engines)
        self.work_on(work)

    @invariant()
    def store_is_sound(self) -> None:
        if hasattr(self, "world"):
            check_invariants(self.world.store)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.close_all_leaving()
        serve_all(self.world, self.engines, self.world.random)
        for engine in self.engines:
            self.close(engine)
        self.world.drain()
        self.world.check_nothing_held()
        take_all(self.world, self.texts, self.last_number + 1)
        self.world.check_nothing_held()


TestStoreMachine = StoreMachine.TestCase
if settings.get_current_profile_name() != "soak":
    # The same examples on every run: a change that fails has made it fail.
    TestStoreMachine.settings = settings(
        derandomize=True, database=None, max_examples=25, stateful_step_count=25, deadline=None
    )


class SkipsFences(Store):
    """Takes a step for completed when it is sent."""

    def handle(self, event: Event) -> Effects:
        if isinstance(event, Step):
            event = structs.replace(event, completed_step=StepNumber(event.step - 1))
        return super().handle(event)


class UntilItIsFound(StoreMachine):
    """Ends where a rule finds something: what a fault has left can't be served to the end, and to try would
    hide what was found."""

    def teardown(self) -> None:
        pass


def test_the_machine_finds_a_fence_that_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvstore.sim.stores.Store", SkipsFences)
    few = settings(
        derandomize=True,
        database=None,
        max_examples=25,
        stateful_step_count=25,
        deadline=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
    )
    with pytest.raises((Wrong, CheckFailed)):
        run_state_machine_as_test(UntilItIsFound, settings=few)
