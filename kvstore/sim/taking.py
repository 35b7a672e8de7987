"""What the results of operations make of an engine's sequences, as it knows them."""

from collections.abc import Callable

from kvstore.core.columns import as_allocates
from kvstore.core.operations import (
    Allocate,
    AllocateResult,
    Fork,
    ForkResult,
    Free,
    Grow,
    GrowResult,
    Operation,
    Result,
    Swap,
    SwapResult,
    UpdateActivity,
    UpdateActivityResult,
)
from kvstore.core.types import Activity, Direction, Outcome, SequenceId, SequenceState
from kvstore.sim.line import Line
from kvstore.sim.texts import BLOCK_TOKENS
from kvstore.sim.work import Inherit

__all__ = ["Taking"]


class Taking:
    """`granted` is told of a line that has a new table, and how many tokens were found for it."""

    def __init__(
        self, lines: dict[int, Line], children: dict[int, Line], granted: Callable[[Line, int], None]
    ) -> None:
        self._lines, self._children, self._granted = lines, children, granted

    def take(self, operation: Operation, result: Result) -> None:
        match operation, result:
            case Free(), _:
                for id in operation.sequences:
                    self._lines.pop(id, None)
            case Fork(), ForkResult():
                self._take_fork(operation, result)
            case Allocate(), AllocateResult():
                line = self._lines[operation.sequence]
                came = line.state is SequenceState.DROPPED and result.outcome is Outcome.OK
                if not line.take_allocate(operation, result):
                    self._lines.pop(operation.sequence)
                if came:
                    self._granted(line, result.cached_tokens)
            case Grow(), GrowResult():
                for single, outcome in as_allocates(operation, result):
                    self.take(single, outcome)
            case Swap(direction=Direction.OUT), SwapResult():
                self._lines[operation.sequence].take_swap_out(result)
            case Swap(), SwapResult():
                line = self._lines[operation.sequence]
                came = line.state is SequenceState.DROPPED and result.outcome is Outcome.OK
                line.take_swap_in(result)
                if came:
                    self._granted(line, result.valid_tokens)
            case UpdateActivity(), UpdateActivityResult():
                line = self._lines[operation.sequence]
                if line.state is SequenceState.DROPPED and result.outcome is Outcome.OK:
                    # How much was found is told later.
                    self._granted(line, len(line.tokens) // BLOCK_TOKENS * BLOCK_TOKENS)
                line.state = result.state
                if operation.activity is Activity.RUNNING and result.outcome is Outcome.OK:
                    line.running = True

    def _take_fork(self, operation: Fork, result: ForkResult) -> None:
        parent = self._lines.get(operation.parent)
        for id in operation.children:
            child = self._children.pop(id)
            if result.outcome is Outcome.OK and parent is not None:
                child.seen.granted_at = parent.seen.granted_at
                child.table, child.state, child.running = list(parent.table), SequenceState.RESIDENT, True
                self._lines[SequenceId(id)] = child
                child.inherited.append(Inherit(parent.seen, child.seen, len(parent.table)))
