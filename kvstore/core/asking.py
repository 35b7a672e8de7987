"""Who asks for GPU frames in a step: those that grow and begin, then those that come back. What finds no room
has sequences that nobody runs moved out of its way.
"""

from typing import TypeVar

from kvstore.core.admission import Admission
from kvstore.core.answering import Answering
from kvstore.core.answers import FrameCopy
from kvstore.core.columns import allocates_of, as_columns
from kvstore.core.config import StoreConfig
from kvstore.core.engines import Engine
from kvstore.core.granting import Asked, Granting
from kvstore.core.growing import Growing
from kvstore.core.leaving import Leaving
from kvstore.core.memory import Memory
from kvstore.core.operations import Allocate, Grow, Result, Swap, UpdateActivity, UpdateActivityResult
from kvstore.core.phases import Phases, Placed
from kvstore.core.sequences import Sequence
from kvstore.core.settling import Settling
from kvstore.core.tails import Tails
from kvstore.core.types import RESIDENT, StepNumber
from kvstore.core.wanted import Wanted

__all__ = ["Asking", "Coming"]

A = TypeVar("A", Allocate, Swap | UpdateActivity)
# What asks for a sequence to be brought back.
Coming = list[tuple[int, Swap | UpdateActivity]]


class Asking:
    def __init__(
        self,
        config: StoreConfig,
        memory: Memory,
        settling: Settling,
        leaving: Leaving,
        admission: Admission,
        growing: Growing,
        granting: Granting,
        answering: Answering,
    ) -> None:
        self._config = config
        self._memory = memory
        self._settling = settling
        self._leaving = leaving
        self._admission = admission
        self._growing = growing
        self._granting = granting
        self._answering = answering

    def ask(
        self,
        engine: Engine,
        step: StepNumber,
        phases: Phases,
        coming: Coming,
        time: float,
        results: dict[int, Result],
    ) -> tuple[tuple[FrameCopy, ...], list[Sequence]]:
        """Copies that the engine is to make, and sequences that the store has moved to make room."""
        grows, allocates = phases.of(Grow), phases.of(Allocate)
        if not (grows or allocates or coming):
            return (), []
        tails = Tails(self._memory, self._config.block_tokens)
        moved = self._grow(engine, grows, allocates, phases.count, time, tails, results)
        if coming:
            moved += self._bring_in(engine, coming, time, tails, results)
        return self._answering.frame_copies(tails.end(engine, step)), moved

    def _grow(
        self,
        engine: Engine,
        grows: Placed[Grow],
        allocates: Placed[Allocate],
        number: int,
        time: float,
        tails: Tails,
        results: dict[int, Result],
    ) -> list[Sequence]:
        """A Grow that can't be served as such goes with the Allocates, as the first of them; and so do
        those after it, which may name the same sequences. Its Allocates are numbered from `number`."""
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

    def _bring_in(
        self,
        engine: Engine,
        coming: Coming,
        time: float,
        tails: Tails,
        results: dict[int, Result],
    ) -> list[Sequence]:
        moved: list[Sequence] = []
        while coming:
            now, coming = _first_of_each(coming)
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
