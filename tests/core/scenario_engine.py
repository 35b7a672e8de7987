"""An engine of a scenario: what it has been told of its sequences, and its GPU work on them."""

from dataclasses import dataclass, field, replace

from kvstore.core.answers import StepAnswer
from kvstore.core.notices import Notice, SequenceMoved
from kvstore.core.operations import (
    Allocate,
    AllocateResult,
    Fork,
    ForkResult,
    Free,
    Operation,
    Result,
    Swap,
    SwapResult,
    UpdateActivity,
    UpdateActivityResult,
)
from kvstore.core.types import EngineId, Outcome, Revision, SequenceState
from tests.core.scenario_texts import Text
from tests.core.scenario_words import ScenarioError
from tests.core.shadow import CopyFrame, ReadTokens, Work, WriteTokens
from tests.core.world import BLOCK_TOKENS, World, engine_id

__all__ = ["Engine", "Held"]


@dataclass(slots=True)
class Held:
    """A sequence as its engine knows it. `filled`: tokens whose KV is in the table, as far as it knows."""

    text: Text = field(default_factory=Text)
    state: SequenceState = SequenceState.DROPPED
    table: tuple[int, ...] = ()
    filled: int = 0


@dataclass(slots=True)
class Engine:
    number: int
    step: int = 0
    seen: Revision = Revision(0)
    last_answer: StepAnswer | None = None
    # Asked for, whether granted or not.
    asked: dict[int, Held] = field(default_factory=dict)

    @property
    def id(self) -> EngineId:
        return engine_id(self.number)

    def held(self, sequence: int) -> Held:
        if sequence not in self.asked:
            raise ScenarioError(f"E{self.number} has never asked for s{sequence}")
        return self.asked[sequence]

    # ------------------------------------------------------------------------ what it is told

    def take_answer(self, operations: tuple[Operation, ...], answer: StepAnswer, world: World) -> None:
        for operation, result in zip(operations, answer.results, strict=True):
            self._take_result(operation, result)
        self.take_notices(answer.notices)
        self.step, self.last_answer = answer.step, answer
        self._copy(answer, world)

    def take_notices(self, notices: tuple[Notice, ...]) -> None:
        """Those told before, to a keepalive whose answer is not acknowledged yet, are no news."""
        for notice in self.news(notices):
            if isinstance(notice, SequenceMoved) and notice.sequence in self.asked:
                held = self.asked[notice.sequence]
                held.state, held.filled = notice.state, notice.valid_tokens
                held.table = notice.block_table
        self.seen = max((self.seen, *(notice.revision for notice in notices)))

    def news(self, notices: tuple[Notice, ...]) -> list[Notice]:
        return [notice for notice in notices if notice.revision > self.seen]

    def _take_result(self, operation: Operation, result: Result) -> None:
        match operation, result:
            case Allocate(), AllocateResult():
                self._take_allocate(self.held(operation.sequence), operation, result)
            case Fork(), ForkResult(outcome=Outcome.OK):
                for child in operation.children:
                    self.asked.setdefault(child, replace(self.held(operation.parent)))
            case Swap(), SwapResult():
                held = self.held(operation.sequence)
                if result.block_table:
                    held.table = result.block_table
                if held.state is not SequenceState.RESIDENT and result.block_table:
                    held.filled = result.valid_tokens
                self._move(held, result.state)
            case UpdateActivity(), UpdateActivityResult():
                self._move(self.held(operation.sequence), result.state)
            case Free(), _:
                for sequence in operation.sequences:
                    self.asked.pop(sequence, None)

    def _take_allocate(self, held: Held, operation: Allocate, result: AllocateResult) -> None:
        if result.outcome is Outcome.OK:
            if held.state is SequenceState.DROPPED:
                held.filled = result.cached_tokens
            held.table = (*held.table[: result.first_block], *result.block_table)
        self._move(held, result.state)

    def _move(self, held: Held, state: SequenceState) -> None:
        held.state = state
        if state is SequenceState.DROPPED:
            held.table, held.filled = (), 0

    # --------------------------------------------------------------------------- its GPU work

    def _copy(self, answer: StepAnswer, world: World) -> None:
        """Copies on write come first in the step's own work; at once where nothing is launched before."""
        works = [CopyFrame(copy.source, copy.target) for copy in answer.copies]
        launched = bool(world.pending.get(self.number))
        for work in works:
            world.enqueue(self.number, self.step, work)
        if not launched:
            world.execute(self.number, self.step)

    def write(self, sequence: int, text: Text) -> Work:
        """KV of what is not filled yet, up to the end of the text."""
        held = self.held(sequence)
        held.text = text if text.tokens else held.text
        work = WriteTokens(held.table, held.text.tokens, held.filled, len(held.text.tokens))
        self._check_table(held, sequence, len(held.text.tokens))
        held.filled = len(held.text.tokens)
        return work

    def read(self, sequence: int) -> Work:
        held = self.held(sequence)
        self._check_table(held, sequence, held.filled)
        return ReadTokens(held.table, held.text.tokens, held.filled)

    def _check_table(self, held: Held, sequence: int, token_count: int) -> None:
        work = ReadTokens(held.table, held.text.tokens, token_count)
        if not token_count or -(-token_count // BLOCK_TOKENS) != len(work.frames_read()):
            raise ScenarioError(f"s{sequence} has no table for {token_count} tokens: {held.table}")
