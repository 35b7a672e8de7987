"""The phases of a step, each over all of its operations of one kind.

Commit, fork and free only write down what is to happen; `settle` lets happen what the
completed step has passed; then room is made and frames are asked for. The order of the
phases is the contract's (see `Step` in kvstore.proto); `checking.py` has made sure that
nothing here refuses.
"""

from typing import TypeVar

from kvstore.core.admission import Admission
from kvstore.core.answering import Answering
from kvstore.core.answers import FrameCopy
from kvstore.core.blocks import concat
from kvstore.core.columns import allocates_of, as_columns
from kvstore.core.committing import Committing
from kvstore.core.config import StoreConfig
from kvstore.core.engines import Engine, SessionEnd
from kvstore.core.freeing import Freeing
from kvstore.core.granting import Asked, Granting
from kvstore.core.growing import Growing
from kvstore.core.leaving import Leaving
from kvstore.core.memory import Memory
from kvstore.core.operations import (
    Allocate,
    Commit,
    CommitResult,
    EndSession,
    EndSessionResult,
    Fork,
    ForkResult,
    Free,
    FreeResult,
    Grow,
    Result,
    Swap,
    SwapResult,
    UpdateActivity,
    UpdateActivityResult,
)
from kvstore.core.phases import Phases, Placed
from kvstore.core.sequences import Sequence
from kvstore.core.settling import Settling
from kvstore.core.tails import Tails
from kvstore.core.types import DROPPED, LATER, OK, RESIDENT, RUNNING, Direction, StepNumber, domain_id
from kvstore.core.wanted import Wanted

__all__ = ["Steps"]

A = TypeVar("A", Allocate, Swap | UpdateActivity)
Asking = list[tuple[int, Swap | UpdateActivity]]


class Steps:
    """Applies checked operations. Each phase makes a fixed number of numpy calls."""

    def __init__(
        self,
        config: StoreConfig,
        memory: Memory,
        committing: Committing,
        settling: Settling,
        freeing: Freeing,
        leaving: Leaving,
        admission: Admission,
        growing: Growing,
        granting: Granting,
        answering: Answering,
    ) -> None:
        self._config = config
        self._memory = memory
        self._committing = committing
        self._settling = settling
        self._freeing = freeing
        self._leaving = leaving
        self._admission = admission
        self._growing = growing
        self._granting = granting
        self._answering = answering

    def apply(
        self,
        engine: Engine,
        step: StepNumber,
        completed: StepNumber,
        phases: Phases,
        time: float,
    ) -> tuple[tuple[Result, ...], tuple[FrameCopy, ...], list[Sequence]]:
        """Results in the order of the operations, copies for the engine, sequences that the
        store has moved to make room."""
        # What this step gives up, publishes or offers for copying is used by work up to the one before.
        fence = StepNumber(step - 1)
        results: dict[int, Result] = {}
        for index, operation in phases.of(Commit):
            self._committing.commit(engine, operation, fence)
            results[index] = CommitResult()
        if forks := phases.of(Fork):
            self._fork(engine, forks, results)
        if frees := phases.of(Free):
            self._freeing.free(engine, [operation for _, operation in frees], fence)
            results.update({index: FreeResult() for index, _ in frees})
        engine.completed_step = completed
        self._settling.settle(engine)
        returning: Asking = []
        returning += self._update_activity(engine, phases.of(UpdateActivity), fence, time, results)
        self._end_sessions(engine, phases.of(EndSession), fence, results)
        returning += self._swap_out(engine, phases.of(Swap), fence, time, results)
        # Drops and session ends of this step may be past their fence already.
        self._settling.settle(engine)
        tails = Tails(self._memory, self._config.block_tokens)
        moved = self._grow(engine, phases, time, tails, results)
        moved += self._swap_in(engine, returning, time, tails, results)
        copies = self._answering.frame_copies(tails.end(engine, step))
        return tuple([results[i] for i in range(phases.count)]), copies, moved

    # ------------------------------------------------------------- written down only

    def _fork(self, engine: Engine, forks: list[tuple[int, Fork]], results: dict[int, Result]) -> None:
        children: list[Sequence] = []
        for index, operation in forks:
            # None: a child of this step, whose parent was not resident and so was not shared.
            parent = engine.sequences.get(operation.parent)
            if parent is None or parent.state is not RESIDENT:
                results[index] = ForkResult(outcome=LATER)
                continue
            results[index] = ForkResult(outcome=OK)
            for child in operation.children:
                if child not in engine.sequences:
                    engine.sequences[child] = parent.fork(child, self._config.block_tokens)
                    children.append(engine.sequences[child])
        rows = concat([child.rows for child in children])
        self._memory.blocks.hold(rows)
        self._memory.blocks.reused[rows] = True

    def _end_sessions(
        self,
        engine: Engine,
        ends: list[tuple[int, EndSession]],
        fence: StepNumber,
        results: dict[int, Result],
    ) -> None:
        for index, operation in ends:
            tenant = self._config.tenants[operation.tenant or self._config.default_tenant]
            domain = domain_id(engine.namespace, tenant)
            engine.fences.append(SessionEnd(fence=fence, domain=domain, session=operation.session))
            results[index] = EndSessionResult()

    # ------------------------------------------------------------------ moving about

    def _update_activity(
        self,
        engine: Engine,
        updates: list[tuple[int, UpdateActivity]],
        fence: StepNumber,
        time: float,
        results: dict[int, Result],
    ) -> list[tuple[int, UpdateActivity]]:
        """Returns the updates that ask for a swap IN."""
        returning: list[tuple[int, UpdateActivity]] = []
        for index, operation in updates:
            sequence = engine.sequences.get(operation.sequence)
            if sequence is None:
                results[index] = UpdateActivityResult(outcome=LATER, state=DROPPED)
                continue
            if sequence.activity is not operation.activity:
                sequence.activity, sequence.quiet_since = operation.activity, time
            sequence.resume_delay_seconds = operation.resume_delay_seconds
            resident = sequence.state is RESIDENT
            if operation.activity is RUNNING:
                self._leaving.idle.pop(sequence, None)
                if not resident:
                    returning.append((index, operation))
            else:
                sequence.quiet_step = fence
                if resident:
                    sequence.filled_tokens = engine.knows_filled(sequence, operation.filled_tokens)
                    self._leaving.idle[sequence] = engine
            results[index] = UpdateActivityResult(outcome=OK, state=sequence.state)
        return returning

    def _swap_out(
        self,
        engine: Engine,
        swaps: list[tuple[int, Swap]],
        fence: StepNumber,
        time: float,
        results: dict[int, Result],
    ) -> list[tuple[int, Swap]]:
        """Returns the swaps IN, which come later."""
        returning: list[tuple[int, Swap]] = []
        for index, operation in swaps:
            if operation.sequence not in engine.sequences:
                results[index] = SwapResult(outcome=LATER, state=DROPPED)
            elif operation.direction is Direction.OUT:
                results[index] = self._leaving.swap_out(engine, operation, fence, time)
            else:
                returning.append((index, operation))
        return returning

    def _grow(
        self,
        engine: Engine,
        phases: Phases,
        time: float,
        tails: Tails,
        results: dict[int, Result],
    ) -> list[Sequence]:
        """A Grow that can't be served as such goes with the Allocates, as the first of them; and so do
        those after it, which may name the same sequences."""
        grows, allocates, number = phases.of(Grow), phases.of(Allocate), phases.count
        alone = not allocates and len(grows) == 1
        singly: list[tuple[int, Grow, range]] = []
        singles: Placed[Allocate] = []
        for index, operation in grows:
            result = None if singly else self._growing.grow(engine, operation, alone=alone)
            if result is not None:
                results[index] = result
                continue
            numbers = range(number, number + len(operation.sequences))
            singles += zip(numbers, allocates_of(operation), strict=True)
            singly.append((index, operation, numbers))
            number = numbers.stop
        moved = self._allocate(engine, [*singles, *allocates] if singles else allocates, time, tails, results)
        for index, operation, numbers in singly:
            results[index] = as_columns(operation, [results[number] for number in numbers])
        return moved

    def _allocate(
        self,
        engine: Engine,
        allocates: Placed[Allocate],
        time: float,
        tails: Tails,
        results: dict[int, Result],
    ) -> list[Sequence]:
        moved: list[Sequence] = []
        if allocates:
            allocates = self._growing.grow_allocates(engine, allocates, results)
        while allocates:
            # Two operations on one sequence are asked one after the other.
            now, allocates = _first_of_each(allocates)
            tails.look_at([engine.sequences.get(operation.sequence) for _, operation in now])
            asked = [self._granting.ask_allocate(engine, operation) for _, operation in now]
            moved += self._grant(asked, time, tails)
            for (index, _), result in zip(now, self._answering.answer_allocate(asked), strict=True):
                results[index] = result
        return moved

    def _swap_in(
        self,
        engine: Engine,
        returning: Asking,
        time: float,
        tails: Tails,
        results: dict[int, Result],
    ) -> list[Sequence]:
        moved: list[Sequence] = []
        while returning:
            now, returning = _first_of_each(returning)
            asked = [self._granting.ask_in(engine, engine.sequences[op.sequence]) for _, op in now]
            moved += self._grant(asked, time, tails)
            for (index, operation), result in zip(now, self._answering.answer_in(asked), strict=True):
                sequence = engine.sequences[operation.sequence]
                if isinstance(operation, UpdateActivity):
                    results[index] = UpdateActivityResult(outcome=result.outcome, state=result.state)
                    # This answer has no room for a table: a notice in the same answer tells it.
                    if result.state is RESIDENT:
                        moved.append(sequence)
                else:
                    results[index] = result
        return moved

    def _grant(self, asked: list[Asked], time: float, tails: Tails) -> list[Sequence]:
        """Grants what fits; for what does not, has idle sequences moved out of the way."""
        waiting = self._granting.grant(asked, time)
        self._granting.apply(asked, tails)
        if not waiting:
            return []
        moved: list[Sequence] = []
        # As they stand in the queue: each wants its own beside what those before it want.
        wanted = Wanted(self._memory.blocks)
        frames_held = self._memory.room.held_on_gpu()
        for each in waiting:
            if each.request:
                wanted.add(each.request.held_before, each.request.fresh_before)
                wanted.add(each.request.rows, each.request.fresh)
            each.frames_short = self._admission.frames_short(wanted, frames_held)
            if each.frames_short and self._leaving.idle:
                relieved = self._leaving.relieve(each.frames_short, time)
                for engine in dict.fromkeys(relieved.values()):
                    self._settling.settle(engine)
                moved += relieved
                wanted.look_again()
                frames_held = self._memory.room.held_on_gpu()
                each.frames_short = self._admission.frames_short(wanted, frames_held)
        return moved


def _first_of_each(operations: list[tuple[int, A]]) -> tuple[list[tuple[int, A]], list[tuple[int, A]]]:
    """Splits off the first operation on each sequence."""
    first = {each[1].sequence: each for each in reversed(operations)}
    if len(first) == len(operations):
        return operations, []
    rest = [each for each in operations if first[each[1].sequence] is not each]
    return [each for each in operations if first[each[1].sequence] is each], rest
