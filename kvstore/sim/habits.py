"""What an engine does in one turn: whatever an engine might do."""

import random

from kvstore.core.calls import Step
from kvstore.core.errors import KVStoreError, StepGap
from kvstore.core.operations import Operation
from kvstore.core.phases import PHASES
from kvstore.core.types import Activity, Retention, SequenceState, StepNumber, SwapMode, Tier
from kvstore.sim.asking import lookup, prefetch, retain
from kvstore.sim.engine import SimEngine
from kvstore.sim.line import Line
from kvstore.sim.ops import allocate, end_session, free, swap_in
from kvstore.sim.stores import TENANTS
from kvstore.sim.texts import BLOCK_TOKENS, Content, Texts
from kvstore.sim.verbs import ask_back, begin, commit_full, free_line, grow, in_columns, preempt, rest, split
from kvstore.sim.wrong import Wrong

__all__ = ["RETAINED_SECONDS_MAX", "Habits"]

LINES_MAX = 6
TOKENS_MAX = 44
# New in a turn of a chat, at the most.
CHAT_TOKENS = 8
RETAINED_SECONDS_MAX = 10.0
SESSIONS = ("", "", "s0", "s1", "s2")
# That come back with all that they have said, until it is too long.
CHATS = ("c0", "c1", "c2", "c3", "c4", "c5")


class Habits:
    """Draws what an engine asks for in its next turn, from what it has."""

    def __init__(self, engine: SimEngine, texts: Texts, rng: random.Random, chat_share: float = 0.0) -> None:
        """`chat_share`: of what is begun, turns of chats that come back."""
        self._engine, self._texts, self._random, self._chat_share = engine, texts, rng, chat_share

    def turn(self) -> None:
        """One step, and perhaps other calls around it."""
        engine, rng = self._engine, self._random
        if rng.random() < 0.05:
            lookup(engine, self._known_text(), rng.choice("ab"))
        if rng.random() < 0.06:
            self._look_ahead()
        if rng.random() < 0.03:
            self._step_wrongly()
        if rng.random() < 0.03:
            engine.attach_again()
        operations = self._plan()
        if engine.single:
            # With calls of their own, the engine keeps to the order of a step.
            for operation in sorted(operations, key=lambda each: PHASES.index(type(each))):
                engine.take_single(operation)
            engine.run_work(engine.step)
        else:
            # An engine may learn late how far its GPU has come.
            late = rng.random() < 0.2
            if rng.random() < 0.5:
                operations = in_columns(operations)
            engine.take_step(operations, rng.randint(engine.reported, engine.completed) if late else None)
            if rng.random() < 0.05:
                engine.resend()
        if rng.random() < 0.1:
            engine.keep_alive(rng.choice([engine.completed, engine.reported]))

    def _look_ahead(self) -> None:
        """Something cached is wanted soon, or for longer."""
        engine, rng, tenant = self._engine, self._random, self._random.choice("ab")
        tokens = self._known_text()
        session = rng.choice(SESSIONS[2:]) if len(tokens) < BLOCK_TOKENS or rng.random() < 0.5 else ""
        if rng.random() < 0.6:
            prefetch(engine, tokens, session, rng.choice([Tier.GPU, Tier.CPU]), tenant)
        else:
            retain(
                engine, tokens, session, RETAINED_SECONDS_MAX ** rng.uniform(-1, 1), rng.randrange(3), tenant
            )

    def _step_wrongly(self) -> None:
        """A number that is not the next one is refused, and nothing is changed by it."""
        engine = self._engine
        if engine.single:
            return
        event = Step(
            time=engine.world.time,
            engine=engine.id,
            step=StepNumber(engine.step + 2),
            completed_step=StepNumber(engine.reported),
            operations=tuple(free(id) for id in engine.lines),
        )
        store = engine.world.store
        before = store.usage()
        try:
            engine.world.handle(event)
        except StepGap:
            after = store.usage()
            if (before.tiers, before.revision) != (after.tiers, after.revision):
                raise Wrong("a refused step has changed something") from None
            return
        except KVStoreError as error:
            raise Wrong(f"a step out of turn is refused as {error.reason}") from error
        raise Wrong("a step out of turn is taken")

    # ------------------------------------------------------------------------- planning

    def _plan(self) -> list[Operation]:
        rng, lines = self._random, self._engine.lines
        operations: list[Operation] = []
        living = list(lines.values())
        if len(lines) < LINES_MAX and rng.random() < 0.5:
            operations.append(self._begin())
        for line in living:
            operations += self._plan_line(line)
        if rng.random() < 0.05:
            sessions = SESSIONS[2:] + (CHATS if self._chat_share else ())
            operations.append(end_session(rng.choice(sessions), tenant=rng.choice("ab")))
        rng.shuffle(operations)
        return operations

    def _begin(self) -> Operation:
        rng = self._random
        if self._chat_share and rng.random() < self._chat_share:
            return self._go_on(rng.choice("ab"), rng.choice(CHATS))
        tenant, old = rng.choice("ab"), self._known_text()
        if rng.random() < 0.3:
            tenant, old = self._stored_text() or (tenant, old)
        kept = old[: rng.randrange(len(old) + 1)] if rng.random() < 0.4 else old
        tokens = [*kept, *self._texts.new_tokens(rng, 13)][:40]
        return begin(self._engine, tokens, tenant, session=rng.choice(SESSIONS), priority=rng.randrange(3))

    def _go_on(self, tenant: str, chat: str) -> Operation:
        """The next turn, or the first of another conversation under the same name."""
        turn, old = self._texts.chats.get((tenant, chat), (0, ()))
        if len(old) + CHAT_TOKENS > TOKENS_MAX:
            turn, old = 0, ()
        tokens = [*old, *self._texts.new_tokens(self._random, CHAT_TOKENS)]
        return begin(self._engine, tokens, tenant, session=chat, turn=turn + 1)

    def _stored_text(self) -> tuple[str, Content] | None:
        """A tenant and a text of its own that lies on disk: one that memory may have forgotten."""
        disk = self._engine.world.shadow.disk
        mine = [name for name in disk if name[0] == self._engine.namespace]
        if not mine:
            return None
        name = self._random.choice(mine)
        tenant = next(tenant for tenant, number in TENANTS.items() if number == name[1])
        blocks = [entry.parts[0].tokens for entry in disk.chain(name)]
        return tenant, tuple(token for block in blocks for token in block)

    def _known_text(self) -> Content:
        rng = self._random
        living = [tuple(line.tokens) for line in self._engine.lines.values()]
        if living and rng.random() < 0.3:
            # The same prompt twice at the same time: blocks that are computed twice.
            return rng.choice(living)
        if self._texts.known and rng.random() < 0.8:
            return rng.choice(self._texts.known)
        return ()

    def _plan_line(self, line: Line) -> list[Operation]:
        rng = self._random
        if rng.random() < 0.08:
            commits = self._commit(line) if rng.random() < 0.7 else []
            return [*commits, free_line(line, self._texts, rng.choice(list(Retention)))]
        if not line.running:
            commits = self._commit(line) if rng.random() < 0.2 else []
            return [*commits, ask_back(line, rng)] if rng.random() < 0.5 else commits
        if line.state is SequenceState.RESIDENT:
            return self._plan_running(line)
        if line.is_fresh:
            return [allocate(line.id, len(line.tokens))] if rng.random() < 0.7 else []
        return [swap_in(line.id)] if rng.random() < 0.3 else []

    def _plan_running(self, line: Line) -> list[Operation]:
        rng = self._random
        operations = self._commit(line) if rng.random() < 0.6 else []
        chance = rng.random()
        if chance < 0.12:
            return [*operations, preempt(line, rng.choice(list(SwapMode)))]
        if chance < 0.25:
            doing = rng.choice([Activity.WAITING, Activity.PARKED])
            return [*operations, rest(line, doing, rng.choice([-1.0, 0.0, 5.0]))]
        if chance < 0.35 and len(self._engine.lines) < LINES_MAX + 3 and line.written == len(line.tokens):
            endings = [tuple(self._texts.new_tokens(rng, 5)) for _ in range(rng.choice([1, 1, 2, 3]))]
            operations.append(split(self._engine, line, endings))
        more = self._texts.new_tokens(rng, 5) if len(line.tokens) < TOKENS_MAX else []
        # An engine's client names all the blocks that it knows; another may know of none.
        known_blocks = (
            len(line.table) if rng.random() < 0.7 else rng.randrange(TOKENS_MAX // BLOCK_TOKENS + 1)
        )
        return [*operations, grow(line, more, known_blocks)]

    def _commit(self, line: Line) -> list[Operation]:
        return commit_full(line, self._random.randrange(line.committed + 1))
