"""The operations of a step into facts, each with its result."""

from collections.abc import Iterator

from kvstore.core.columns import as_allocates
from kvstore.core.operations import (
    Allocate,
    AllocateResult,
    Commit,
    EndSession,
    Fork,
    Free,
    Grow,
    GrowResult,
    Operation,
    Result,
    Swap,
    SwapResult,
    UpdateActivity,
)
from kvstore.core.phases import PHASES
from kvstore.core.types import Direction, EngineId, Outcome, SequenceId, SequenceState, blocks_for_tokens
from kvstore.observe.facts import Fact, Held, Ref
from kvstore.observe.tables import Line, Tables
from kvstore.observe.words import count, operation_words, result_words

__all__ = ["OperationTeller", "in_order", "sequences_of"]

# A fact, and the blocks that are published when its step has completed.
Told = tuple[Fact, tuple[Held, ...]]
NONE: tuple[Held, ...] = ()


def sequences_of(operation: Operation) -> tuple[SequenceId, ...]:
    match operation:
        case Fork():
            return (operation.parent, *operation.children)
        case Free() | Grow():
            return operation.sequences
        case EndSession():
            return ()
        case Allocate() | Swap() | Commit() | UpdateActivity():
            return (operation.sequence,)


def in_order(operation: Operation) -> int:
    """The place of an operation in its step: they take effect kind by kind, as the contract says."""
    if isinstance(operation, Swap) and operation.direction is Direction.IN:
        return len(PHASES)
    return PHASES.index(type(operation))


class OperationTeller:
    """Keeps the tables up to date on the way."""

    def __init__(self, tables: Tables, block_tokens: int) -> None:
        self._tables = tables
        self._block_tokens = block_tokens

    def tell(self, engine: EngineId, where: str, operation: Operation, result: Result) -> Iterator[Told]:
        text = f"{where}: {operation_words(operation)}"
        match operation:
            case Allocate() if isinstance(result, AllocateResult):
                yield from self._allocate(engine, text, operation, result)
            case Grow() if isinstance(result, GrowResult):
                for single, outcome in as_allocates(operation, result):
                    tokens = count(single.token_count, "token")
                    text = f"{where}: Grow sequence {single.sequence}, {tokens}"
                    yield from self._allocate(engine, text, single, outcome)
            case Swap() if isinstance(result, SwapResult):
                yield from self._swap(engine, text, operation, result)
            case Commit():
                line = self._tables.line(engine, operation.sequence)
                blocks = self._tables.commit(line, operation.first_block, operation.block_keys)
                yield (
                    self._about(text, line, blocks=blocks),
                    tuple(each for each in blocks if not each.content.published),
                )
            case Fork():
                parent = self._tables.line(engine, operation.parent)
                children = self._tables.fork(parent, operation.children)
                yield self._about(text, parent, *children), NONE
            case Free():
                lines = [self._tables.line(engine, each) for each in operation.sequences]
                blocks = tuple(block for line in lines for block in self._tables.held(line))
                yield self._about(text, *lines, blocks=blocks), NONE
                for line in lines:
                    self._tables.end(line)
            case EndSession():
                yield Fact(text=text, sessions=frozenset({operation.session})), NONE
                self._tables.end_session(operation.session)
            case _:
                lines = [self._tables.line(engine, each) for each in sequences_of(operation)]
                yield self._about(f"{text}: {result_words(result)}", *lines), NONE

    def _allocate(
        self, engine: EngineId, text: str, operation: Allocate, result: AllocateResult
    ) -> Iterator[Told]:
        known = Ref(engine, operation.sequence) in self._tables.lines
        line = self._tables.line(engine, operation.sequence)
        line.session = line.session or operation.session
        line.keys[: len(operation.block_keys)] = operation.block_keys
        if result.outcome is Outcome.OK:
            cached = result.cached_tokens // self._block_tokens
            gone = self._tables.grant(
                line, result.first_block, result.block_table, cached, loading=_is_loading(result)
            )
            yield from self._gone(gone, line)
        blocks = 0 if known else blocks_for_tokens(operation.token_count, self._block_tokens)
        words = result_words(result, blocks, self._block_tokens)
        held = self._tables.held(line, result.first_block) if result.block_table else NONE
        yield self._about(f"{text}: {words}", line, blocks=held), NONE

    def _swap(self, engine: EngineId, text: str, operation: Swap, result: SwapResult) -> Iterator[Told]:
        line = self._tables.line(engine, operation.sequence)
        if result.block_table:
            known = result.valid_tokens // self._block_tokens
            gone = self._tables.grant(line, 0, result.block_table, known, loading=_is_loading(result))
            yield from self._gone(gone, line)
        # Before the table is forgotten: the fact is about what was in it.
        yield self._about(f"{text}: {result_words(result)}", line, blocks=self._tables.held(line)), NONE
        if result.state in (SequenceState.SWAPPED, SequenceState.DROPPED):
            self._tables.leave(line)

    def _gone(self, gone: tuple[Held, ...], line: Line) -> Iterator[Told]:
        if gone:
            engine, sequence = line.ref
            text = f"copies gone, sequence {sequence} of engine {engine} was granted their frames"
            yield Fact(text=text, blocks=gone), NONE

    def _about(self, text: str, *lines: Line, blocks: tuple[Held, ...] = NONE) -> Fact:
        refs = {line.ref for line in lines}
        sessions = self._tables.sessions_of(refs)
        return Fact(text=text, blocks=blocks, sequences=frozenset(refs), sessions=sessions)


def _is_loading(result: AllocateResult | SwapResult) -> bool:
    return result.state is SequenceState.SWAPPING_IN
