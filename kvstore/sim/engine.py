"""An engine: its calls, what it takes in from the answers, and the work of its GPU stream."""

import random
from functools import partial

from kvstore.core.answers import AttachAnswer, KeepAliveAnswer, StepAnswer
from kvstore.core.calls import Attach, KeepAlive, Single, Step
from kvstore.core.events import Event, TetherOpened
from kvstore.core.notices import Notice, SequenceMoved
from kvstore.core.operations import Commit, Fork, Operation, Result
from kvstore.core.types import NamespaceId, Revision, SequenceState, StepNumber, WriterId
from kvstore.sim.clock import Clock
from kvstore.sim.costs import Timings
from kvstore.sim.line import Line
from kvstore.sim.stores import TENANTS
from kvstore.sim.taking import Taking
from kvstore.sim.texts import BLOCK_TOKENS, engine_id
from kvstore.sim.work import CopyFrame, Publish, ReadTokens, Space, WriteTokens
from kvstore.sim.world import World
from kvstore.sim.wrong import Wrong, expect

__all__ = ["SimEngine"]


class SimEngine:
    """Does as it is told (`habits.py` does the telling). Never breaks the contract."""

    def __init__(
        self,
        world: World,
        number: int,
        *,
        namespace: int = 1,
        single: bool = False,
        lease_seconds: float = 10.0,
        with_tethers: bool = True,
        timed: bool = False,
    ) -> None:
        """`timed`: it tells what its steps took."""
        self.world, self.number, self.namespace, self.single = world, number, namespace, single
        self.id = engine_id(number)
        self.step = 0
        # Steps whose work has run, whose end is known, and whose end was told.
        self.executed = self.completed = self.reported = 0
        self.lines: dict[int, Line] = {}
        # Children of forks, until it is known whether they were made.
        self.children: dict[int, Line] = {}
        self._taking = Taking(self.lines, self.children, self._note_grant)
        self.alive = True
        self.hangs_until = 0.0
        self.last_event: Step | None = None
        self._last_answer: StepAnswer | None = None
        self._stream_free = 0.0
        self._seen_revision = 0
        self._last_id = 0
        self._timings = Timings() if timed else None
        self.attach = Attach(
            time=world.time,
            engine=self.id,
            request_id=f"request {number}",
            namespace=NamespaceId(namespace),
            writer=WriterId(number),
            build="simulated",
            lease_seconds=lease_seconds,
        )
        answer = world.handle(self.attach).answer
        expect(isinstance(answer, AttachAnswer) and answer.created, f"Attach is answered with {answer}")
        if with_tethers:
            for rank in world.shadow.ranks:
                world.handle(TetherOpened(time=world.time, engine=self.id, pid=10 * number + rank))

    def take_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def space(self, tenant: str) -> Space:
        return Space(self.namespace, TENANTS[tenant])

    # ---------------------------------------------------------------------------- calls

    def take_step(self, operations: list[Operation], reported: int | None = None) -> StepAnswer:
        """Sends a step, takes its answer in and sends its work to the GPU."""
        self.step += 1
        self.reported = self.completed if reported is None else reported
        self.last_event = Step(
            time=self.world.time,
            engine=self.id,
            step=StepNumber(self.step),
            completed_step=StepNumber(self.reported),
            operations=tuple(operations),
            timings=self._timings.take(self.reported) if self._timings is not None else (),
        )
        self._last_answer = self._send(self.last_event, operations)
        return self._last_answer

    def take_single(self, operation: Operation) -> StepAnswer:
        """A call of its own, with no work in flight."""
        self.run_work(self.step)
        self.step += 1
        event = Single(time=self.world.time, engine=self.id, operation=operation)
        return self._send(event, [operation])

    def call(self, operations: list[Operation]) -> list[Result]:
        """In the engine's own style."""
        if not self.single:
            return list(self.take_step(operations).results)
        return [self.take_single(operation).results[0] for operation in operations]

    def resend(self) -> None:
        """The answer has got lost on the way: the same step again does nothing, and has the same answer."""
        if self.last_event is not None:
            answer = self.world.handle(self.last_event).answer
            expect(answer == self._last_answer, f"engine {self.number}: a step sent again has another answer")

    def attach_again(self) -> None:
        """A retry of the first call, with an id of its own."""
        answer = self.world.handle(self.attach).answer
        same = isinstance(answer, AttachAnswer) and (answer.engine, answer.created) == (self.id, False)
        expect(same, f"engine {self.number}: a retry of Attach is answered with {answer}")

    def keep_alive(self, completed: int | None = None) -> None:
        event = KeepAlive(
            time=self.world.time,
            engine=self.id,
            completed_step=StepNumber(self.completed if completed is None else completed),
            seen_revision=Revision(self._seen_revision),
        )
        answer = self.world.handle(event).answer
        if not isinstance(answer, KeepAliveAnswer):
            raise Wrong(f"engine {self.number}: KeepAlive is answered with {answer}")
        # What is told here is told again in the next step, unless it was taken in.
        self.reported = max(self.reported, int(event.completed_step))
        self._take_notices(answer.notices, answer.revision)

    def _send(self, event: Event, operations: list[Operation]) -> StepAnswer:
        answer = self.world.handle(event).answer
        if not isinstance(answer, StepAnswer):
            raise Wrong(f"engine {self.number}: a step is answered with {answer}")
        expect(answer.step == self.step, f"engine {self.number}: step {self.step} was taken as {answer.step}")
        self._publish(operations)
        # In the order of the phases: a child has its parent's table from before the parent's Allocate.
        pairs = list(zip(operations, answer.results, strict=True))
        for operation, result in sorted(pairs, key=lambda pair: not isinstance(pair[0], Fork)):
            self._taking.take(operation, result)
        self._take_notices(answer.notices, answer.revision)
        for copy in answer.copies:
            self.world.enqueue(self.number, self.step, CopyFrame(copy.source, copy.target))
        for line in self.lines.values():
            if line.state is SequenceState.RESIDENT and line.running and line.room:
                self._compute(line)
        return answer

    def _take_notices(self, notices: tuple[Notice, ...], revision: Revision) -> None:
        for notice in notices:
            is_new = notice.revision > self._seen_revision
            if isinstance(notice, SequenceMoved) and notice.sequence in self.lines and is_new:
                self.lines[notice.sequence].take_moved(notice)
        self._seen_revision = revision
        for line in self.lines.values():
            for inherited in line.take_inherited():
                self.world.enqueue(self.number, self.step, inherited)
        self.world.execute(self.number, self.executed)

    # ------------------------------------------------------------------- the GPU's stream

    def _publish(self, operations: list[Operation]) -> None:
        """What a step commits was written by the steps before it."""
        for operation in operations:
            if isinstance(operation, Commit):
                line = self.lines[operation.sequence]
                end = operation.first_block + len(operation.block_keys)
                work = Publish(
                    tuple(line.tokens),
                    operation.first_block,
                    end,
                    line.space,
                    line.seen,
                    line.session,
                    self.number,
                )
                self._note_use(line, end)
                # What a swapped sequence's engine commits the store publishes at once, as all is written.
                seen = line.seen.keys() >= set(range(operation.first_block, end))
                if not seen or self.world.is_to_be_written(self.number, work):
                    self.world.enqueue(self.number, self.step - 1, work)
                else:
                    self.world.run(self.number, self.step, work)
        self.world.execute(self.number, self.executed)

    def _note_grant(self, line: Line, found_tokens: int) -> None:
        """It has a new table, with what was found in it."""
        line.seen.granted_at = self.world.events
        self._note_use(line, found_tokens // BLOCK_TOKENS)

    def _note_use(self, line: Line, end: int) -> None:
        """A Forget of one session leaves what others have in their prompts."""
        user = line.session or self.label(line.id)
        for place in range(end):
            block = tuple(line.tokens[place * BLOCK_TOKENS : (place + 1) * BLOCK_TOKENS])
            self.world.shadow.origins.use(line.space, block, user)

    def _compute(self, line: Line) -> None:
        table, tokens, label = tuple(line.table), tuple(line.tokens), self.label(line.id)
        read = ReadTokens(table, tokens, line.written, line.space, line.seen, label)
        self.world.enqueue(self.number, self.step, read)
        if line.room > line.written:
            write = WriteTokens(table, tokens, line.written, line.room, line.space, line.seen, label)
            self.world.enqueue(self.number, self.step, write)
            if self._timings is not None:
                self._timings.note(self.step, line.written, line.room - line.written)
            line.written = line.room

    def label(self, sequence: int) -> str:
        return f"sequence {sequence} of engine {self.number}"

    def run_work(self, up_to: int) -> None:
        """The work of all steps up to this one has run and its end is known."""
        self._execute(up_to)
        self.completed = max(self.completed, up_to)

    def run_later(self, clock: Clock, rng: random.Random, pace: float) -> None:
        """The work of the last step runs after that of the steps before it."""
        start = max(self.world.time, self._stream_free)
        self._stream_free = start + pace * rng.uniform(0.3, 1.2)
        clock.at(rng.uniform(start, self._stream_free), partial(self._execute, self.step))
        clock.at(self._stream_free, partial(self._complete, self.step))

    def _execute(self, up_to: int) -> None:
        if self.alive and up_to > self.executed:
            self.world.execute(self.number, up_to)
            self.executed = up_to

    def _complete(self, step: int) -> None:
        if self.alive:
            self.run_work(step)

    def stop(self) -> None:
        """Its processes are gone: work that has not run never will."""
        self.alive = False
        self.world.pending.pop(self.number, None)
