"""The phases of a step, each over all of its operations of one kind.

Commit, fork and free only write down what is to happen; `settle` lets happen what the
completed step has passed; then frames are asked for (`asking.py`). The order of the
phases is the contract's (see `Step` in kvstore.proto); `checking.py` has made sure that
nothing here refuses.
"""

from kvstore.core.answers import FrameCopy
from kvstore.core.asking import Asking, Coming
from kvstore.core.blocks import concat
from kvstore.core.committing import Committing
from kvstore.core.config import StoreConfig
from kvstore.core.engines import Engine, SessionEnd
from kvstore.core.freeing import Freeing
from kvstore.core.leaving import Leaving
from kvstore.core.memory import Memory
from kvstore.core.operations import (
    Commit,
    CommitResult,
    EndSession,
    EndSessionResult,
    Fork,
    ForkResult,
    Free,
    FreeResult,
    Result,
    Swap,
    SwapResult,
    UpdateActivity,
    UpdateActivityResult,
)
from kvstore.core.phases import Phases
from kvstore.core.sequences import Sequence
from kvstore.core.settling import Settling
from kvstore.core.types import DROPPED, LATER, OK, RESIDENT, RUNNING, Direction, StepNumber, domain_id

__all__ = ["Steps"]


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
        asking: Asking,
    ) -> None:
        self._config = config
        self._memory = memory
        self._committing = committing
        self._settling = settling
        self._freeing = freeing
        self._leaving = leaving
        self._asking = asking

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
            self._committing.commit(engine, operation, fence, completed)
            results[index] = CommitResult()
        if forks := phases.of(Fork):
            self._fork(engine, forks, results)
        if frees := phases.of(Free):
            self._freeing.free(engine, [operation for _, operation in frees], fence)
            results.update({index: FreeResult() for index, _ in frees})
        engine.completed_step = completed
        self._settling.settle(engine)
        returning: Coming = []
        if updates := phases.of(UpdateActivity):
            returning += self._update_activity(engine, updates, fence, time, results)
        if ends := phases.of(EndSession):
            self._end_sessions(engine, ends, fence, results)
        if swaps := phases.of(Swap):
            returning += self._swap_out(engine, swaps, fence, time, results)
        # Drops and session ends of this step may be past their fence already.
        self._settling.settle(engine)
        self._settling.keep_put_off()
        copies, moved = self._asking.ask(engine, step, phases, returning, time, results)
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
    ) -> Coming:
        """Returns the updates that ask for a swap IN."""
        returning: Coming = []
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
    ) -> Coming:
        """Returns the swaps IN, which come later."""
        returning: Coming = []
        for index, operation in swaps:
            if operation.sequence not in engine.sequences:
                results[index] = SwapResult(outcome=LATER, state=DROPPED)
            elif operation.direction is Direction.OUT:
                results[index] = self._leaving.swap_out(engine, operation, fence, time)
            else:
                returning.append((index, operation))
        return returning
