"""An engine that does in each step whatever an engine might do."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from kvstore.core.effects import (
    AllocateResult,
    ForkResult,
    Notice,
    Result,
    SequenceMoved,
    StepAnswer,
    SwapResult,
    UpdateActivityResult,
)
from kvstore.core.events import (
    Allocate,
    Attach,
    Fork,
    Free,
    KeepAlive,
    Operation,
    Step,
    Swap,
    TetherOpened,
    UpdateActivity,
)
from kvstore.core.types import (
    Activity,
    Direction,
    NamespaceId,
    Outcome,
    Retention,
    Revision,
    SequenceState,
    StepNumber,
    SwapMode,
    WriterId,
)
from kvstore.sim.ops import activity, allocate, commit, end_session, fork, free, swap_in, swap_out
from kvstore.sim.shadow import BLOCK_TOKENS, CopyFrame, ReadTokens, WriteTokens
from kvstore.sim.world import World, engine_id, keys_of
from kvstore.sim.wrong import Wrong, expect

__all__ = ["Line", "RandomEngine", "Texts"]

LINES_MAX = 6
TOKENS_MAX = 44


class Texts:
    """Texts by tenant, to begin with again, and new tokens that no other text has."""

    def __init__(self, rng: random.Random) -> None:
        self.by_tenant: dict[str, list[tuple[int, ...]]] = {"a": [], "b": []}
        self._random = rng
        self._last_token = 0

    def new_tokens(self, most: int) -> list[int]:
        return list(self._count(self._random.randrange(1, most)))

    def _count(self, count: int) -> Iterator[int]:
        for _ in range(count):
            self._last_token += 1
            yield self._last_token


@dataclass(eq=False)
class Line:
    """A sequence as its engine sees it: the tokens it stands for and how far they are written."""

    id: int
    tokens: list[int]
    tenant: str
    session: str = ""
    table: list[int] = field(default_factory=list)
    written: int = 0
    committed: int = 0
    room: int = 0
    state: SequenceState = SequenceState.DROPPED
    running: bool = False


class RandomEngine:
    """Sends steps, and lets its work run up to `lag` steps late."""

    def __init__(self, world: World, texts: Texts, number: int, lag: int) -> None:
        self.world, self.texts, self.number, self.lag = world, texts, number, lag
        self.id = engine_id(number)
        self.step = 0
        self.completed = 0
        self.lines: dict[int, Line] = {}
        self._next_id = 1
        # Children of this step's forks, until it is known whether they were made.
        self._children: dict[int, Line] = {}
        attach = Attach(
            time=world.time,
            engine=self.id,
            request_id=self.id,
            namespace=NamespaceId(1),
            writer=WriterId(number),
            build="random",
            lease_seconds=10.0,
        )
        world.handle(attach)
        world.handle(TetherOpened(time=world.time, engine=self.id, pid=number))

    # ---------------------------------------------------------------------------- calls

    def random_step(self) -> None:
        rng = self.world.random
        operations: list[Operation] = []
        lines = list(self.lines.values())
        if len(self.lines) < LINES_MAX and rng.random() < 0.5:
            self._begin(operations)
        for line in lines:
            self._plan(line, operations)
        if rng.random() < 0.05:
            operations.append(end_session(f"s{rng.randrange(4)}", tenant=rng.choice("ab")))
        rng.shuffle(operations)
        self.take_step(operations)
        self.run_work(max(self.completed, self.step - rng.randrange(self.lag + 1)))

    def take_step(self, operations: list[Operation]) -> StepAnswer:
        """Sends a step, takes its answer in and sends its work to the GPU."""
        self.step += 1
        event = Step(
            time=self.world.time,
            engine=self.id,
            step=StepNumber(self.step),
            completed_step=StepNumber(self.completed),
            operations=tuple(operations),
        )
        answer = self.world.handle(event).answer
        if not isinstance(answer, StepAnswer):
            raise Wrong(f"a step is answered with {answer}")
        # In the order of the phases: a child has its parent's table from before the parent's Allocate.
        pairs = list(zip(operations, answer.results, strict=True))
        for operation, result in sorted(pairs, key=lambda pair: not isinstance(pair[0], Fork)):
            self._take(operation, result)
        self.take_notices(answer.notices)
        for copy in answer.copies:
            self.world.enqueue(self.number, self.step, CopyFrame(copy.source, copy.target))
        for line in self.lines.values():
            if line.state is SequenceState.RESIDENT and line.running and line.room:
                self._compute(line)
        return answer

    def keep_alive(self, seen: int = 0) -> None:
        event = KeepAlive(
            time=self.world.time,
            engine=self.id,
            completed_step=StepNumber(self.completed),
            seen_revision=Revision(seen),
        )
        self.world.handle(event)

    def run_work(self, up_to: int) -> None:
        self.world.execute(self.number, up_to)
        self.completed = up_to

    def _compute(self, line: Line) -> None:
        table, tokens = tuple(line.table), tuple(line.tokens)
        self.world.enqueue(self.number, self.step, ReadTokens(table, tokens, line.written))
        if line.room > line.written:
            self.world.enqueue(self.number, self.step, WriteTokens(table, tokens, line.written, line.room))
            line.written = line.room

    # ------------------------------------------------------------------------- planning

    def _begin(self, operations: list[Operation]) -> None:
        rng = self.world.random
        tenant = rng.choice("ab")
        known = self.texts.by_tenant[tenant]
        living = [tuple(line.tokens) for line in self.lines.values() if line.tenant == tenant]
        old: tuple[int, ...] = ()
        if living and rng.random() < 0.3:
            # The same prompt twice at the same time: blocks that are computed twice.
            old = rng.choice(living)
        elif known and rng.random() < 0.8:
            old = rng.choice(known)
        kept = old[: rng.randrange(len(old) + 1)] if rng.random() < 0.4 else old
        tokens = [*kept, *self.texts.new_tokens(14)][:40]
        line = Line(self._take_id(), tokens, tenant, session=rng.choice(["", "", "s0", "s1", "s2"]))
        self.lines[line.id] = line
        operations.append(
            allocate(
                line.id,
                len(tokens),
                keys_of(tokens),
                session=line.session,
                tenant=tenant,
                priority=rng.randrange(3),
            )
        )

    def _plan(self, line: Line, operations: list[Operation]) -> None:
        rng = self.world.random
        resident = line.state is SequenceState.RESIDENT
        if rng.random() < 0.08:
            if rng.random() < 0.7:
                self._commit(line, operations)
            operations.append(free(line.id, retention=rng.choice(list(Retention))))
            self.texts.by_tenant[line.tenant].append(tuple(line.tokens))
        elif not line.running:
            if rng.random() < 0.2:
                self._commit(line, operations)
            if rng.random() < 0.5:
                operations.append(self.ask_back(line))
        elif resident:
            self._plan_running(line, operations)
        elif line.state is SequenceState.DROPPED and line.room == 0:
            if rng.random() < 0.7:
                operations.append(allocate(line.id, len(line.tokens)))
        elif rng.random() < 0.3:
            operations.append(swap_in(line.id))

    def ask_back(self, line: Line) -> Operation:
        if line.state is SequenceState.DROPPED and line.room == 0:
            return allocate(line.id, len(line.tokens))
        if self.world.random.random() < 0.5:
            return swap_in(line.id)
        return activity(line.id, Activity.RUNNING)

    def _plan_running(self, line: Line, operations: list[Operation]) -> None:
        rng = self.world.random
        if rng.random() < 0.6:
            self._commit(line, operations)
        chance = rng.random()
        if chance < 0.12:
            line.running = False
            operations.append(swap_out(line.id, line.written, rng.choice(list(SwapMode))))
        elif chance < 0.25:
            line.running = False
            doing = rng.choice([Activity.WAITING, Activity.PARKED])
            operations.append(activity(line.id, doing, line.written))
        else:
            if chance < 0.35 and len(self.lines) < LINES_MAX + 3 and line.written == len(line.tokens):
                self._fork(line, operations)
            if line.written == len(line.tokens) and len(line.tokens) < TOKENS_MAX:
                line.tokens += self.texts.new_tokens(6)
            known = rng.randrange(min(len(line.table), -(-len(line.tokens) // BLOCK_TOKENS)) + 1)
            operations.append(allocate(line.id, len(line.tokens), known_blocks=known))

    def _fork(self, line: Line, operations: list[Operation]) -> None:
        child = Line(self._take_id(), [*line.tokens, *self.texts.new_tokens(6)], line.tenant, line.session)
        # A child always fits: it has had no room of its own yet that it could fall back to.
        del child.tokens[max(len(line.tokens), self.world.store.config.gpu_frames * BLOCK_TOKENS) :]
        child.written, child.committed = line.written, line.committed
        self._children[child.id] = child
        operations.append(fork(line.id, child.id))

    def _commit(self, line: Line, operations: list[Operation]) -> None:
        full = line.written // BLOCK_TOKENS
        if full > line.committed and line.state is not SequenceState.SWAPPING_IN:
            first = self.world.random.randrange(line.committed + 1)
            keys = keys_of(line.tokens[: full * BLOCK_TOKENS])
            operations.append(commit(line.id, keys[first:], first))
            line.committed = full

    def _take_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    # ------------------------------------------------------------------- taking answers in

    def take_notices(self, notices: tuple[Notice, ...]) -> None:
        for notice in notices:
            if isinstance(notice, SequenceMoved) and notice.sequence in self.lines:
                self._moved(self.lines[notice.sequence], notice)

    def _moved(self, line: Line, notice: SequenceMoved) -> None:
        line.state = notice.state
        if notice.state is SequenceState.RESIDENT:
            line.table = list(notice.block_table)
            line.written = notice.valid_tokens
            line.committed = min(line.committed, line.written // BLOCK_TOKENS)
        elif notice.state is SequenceState.DROPPED:
            line.table, line.written, line.committed, line.room = [], 0, 0, 0

    def _take(self, operation: Operation, result: Result) -> None:
        match operation, result:
            case Free(), _:
                for id in operation.sequences:
                    self.lines.pop(id, None)
            case Fork(), ForkResult():
                child, parent = self._children.pop(operation.children[0]), self.lines.get(operation.parent)
                if result.outcome is Outcome.OK and parent:
                    child.table, child.state, child.running = (
                        list(parent.table),
                        SequenceState.RESIDENT,
                        True,
                    )
                    self.lines[child.id] = child
            case Allocate(), AllocateResult():
                self._take_allocate(self.lines[operation.sequence], operation, result)
            case Swap(direction=Direction.OUT), SwapResult():
                line = self.lines[operation.sequence]
                line.state = result.state
                if line.state is SequenceState.DROPPED:
                    line.written, line.committed = 0, 0
            case Swap(), SwapResult():
                self._take_swap_in(self.lines[operation.sequence], result)
            case UpdateActivity(), UpdateActivityResult():
                line = self.lines[operation.sequence]
                line.state = result.state
                if operation.activity is Activity.RUNNING and result.outcome is Outcome.OK:
                    line.running = True

    def _take_allocate(self, line: Line, operation: Allocate, result: AllocateResult) -> None:
        if result.outcome is Outcome.NEVER:
            if line.state is SequenceState.DROPPED and line.room == 0 and not line.table:
                self.lines.pop(line.id)
            else:
                line.tokens = line.tokens[: max(line.room, line.written, 1)]
            return
        if result.outcome is Outcome.LATER:
            return
        first = result.first_block
        expect(len(line.table) >= first, f"blocks before {first} were left out, and not known")
        line.table = line.table[:first] + list(result.block_table)
        line.room = operation.token_count
        if line.state is SequenceState.DROPPED:
            line.running = True
            line.written = result.cached_tokens
            line.committed = line.written // BLOCK_TOKENS
        line.state = result.state

    def _take_swap_in(self, line: Line, result: SwapResult) -> None:
        before, line.state = line.state, result.state
        if result.outcome is Outcome.OK:
            line.running = True
            line.table = list(result.block_table)
            if before is not SequenceState.RESIDENT:
                line.written = result.valid_tokens
                line.committed = min(line.committed, line.written // BLOCK_TOKENS)
