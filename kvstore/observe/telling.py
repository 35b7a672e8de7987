"""Entries into facts: what happened, to which blocks, sequences and sessions.

That a commit is published when its step has completed is the contract's rule, not something that an
effect says; so is that the end of an engine loses what was not published.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from kvstore.core.answers import KeepAliveAnswer, LookupAnswer, StepAnswer
from kvstore.core.calls import (
    Detach,
    Forget,
    GetSequence,
    KeepAlive,
    Lookup,
    Prefetch,
    Retain,
    SetLimits,
    Single,
    Step,
)
from kvstore.core.effects import Effects
from kvstore.core.errors import EngineExpired
from kvstore.core.events import BlocksFound, BlocksLost, Event, TethersClosed, TransferEnded
from kvstore.core.notices import Notice, SequenceMoved
from kvstore.core.types import EngineId, Revision, SequenceState, StepNumber
from kvstore.observe.cached import asked, by_key, deleted, looked_up, noted
from kvstore.observe.facts import NO_KEY, Fact, Held, Ref
from kvstore.observe.operations import OperationTeller, in_order, sequences_of
from kvstore.observe.records import Entry, Failure, Refusal
from kvstore.observe.tables import Tables
from kvstore.observe.transfers import TransferTeller
from kvstore.observe.words import event_words, notice_words

__all__ = ["Teller"]

OF_ENGINES = (Step, Single, KeepAlive, Lookup, GetSequence)


@dataclass(slots=True, eq=False)
class Seen:
    """What an engine has done and was told."""

    step: StepNumber = StepNumber(0)
    told: Revision = Revision(0)
    # Commits of steps that have not completed.
    pending: deque[tuple[StepNumber, Ref, tuple[Held, ...]]] = field(default_factory=deque)


class Teller:
    """Given the entries of a run in order, tells the facts of each."""

    def __init__(self, block_tokens: int) -> None:
        self.engines: dict[EngineId, Seen] = {}
        self.tables = Tables()
        self._operations = OperationTeller(self.tables, block_tokens)
        self._block_tokens = block_tokens
        self._transfers = TransferTeller(self.tables)

    def tell(self, entry: Entry) -> Iterator[Fact]:
        event, outcome = entry.event, entry.outcome
        if isinstance(outcome, Failure):
            text = f"{event_words(event)}: the store stopped, {outcome.kind}: {outcome.text}"
            yield Fact(text=text, always=True)
        elif isinstance(outcome, Refusal):
            yield self._about(self._named(event), f"{event_words(event)}: refused, {outcome.text}")
            if outcome.reason == EngineExpired.reason and isinstance(event, OF_ENGINES):
                # Its lease ended at some tick before, of which no effect tells.
                yield from self._lose(event.engine, f"the lease of engine {event.engine} has ended")
        else:
            yield from self._tell_event(entry, outcome)
            for delete in outcome.deletes:
                yield deleted(delete)
            for note in outcome.notes:
                yield from noted(note)
            for transfer in outcome.transfers:
                yield from self._transfers.start(transfer)

    def _tell_event(self, entry: Entry, effects: Effects) -> Iterator[Fact]:
        event, answer = entry.event, effects.answer
        match event:
            case Step() | Single() if isinstance(answer, StepAnswer):
                yield from self._step(event, answer)
            case KeepAlive() if isinstance(answer, KeepAliveAnswer):
                yield from self._complete(event.engine, event.completed_step)
                yield from self._news(event.engine, answer.notices)
            case Lookup() if isinstance(answer, LookupAnswer):
                yield from looked_up(event, answer)
            case Detach():
                yield self._of_engine(event.engine, event_words(event))
                # Its word that all its steps have completed.
                yield from self._complete(event.engine, self._seen(event.engine).step)
                self._end(event.engine)
            case TethersClosed():
                yield from self._lose(event.engine, event_words(event))
            case TransferEnded():
                yield from self._transfers.ended(event)
            case Prefetch() | Retain() | Forget():
                yield asked(event, answer)
            case BlocksFound():
                yield Fact(text="found on disk", blocks=by_key(block.key for block in event.blocks))
            case BlocksLost():
                yield Fact(text="found bad on disk", blocks=by_key(stored.key for stored in event.keys))
            case SetLimits():
                # Whoever is told to hurry or not from here on may be told so by it.
                yield Fact(text=event_words(event), always=True)

    # ---------------------------------------------------------------------------- engines

    def _step(self, event: Step | Single, answer: StepAnswer) -> Iterator[Fact]:
        seen = self._seen(event.engine)
        asked_again = isinstance(event, Step) and event.step <= seen.step
        if asked_again:
            return
        seen.step = answer.step
        completed = event.completed_step if isinstance(event, Step) else StepNumber(answer.step - 1)
        yield from self._complete(event.engine, completed)
        operations = event.operations if isinstance(event, Step) else (event.operation,)
        where = f"step {answer.step} of engine {event.engine}"
        pairs = zip(operations, answer.results, strict=True)
        for operation, result in sorted(pairs, key=lambda pair: in_order(pair[0])):
            for fact, committed in self._operations.tell(event.engine, where, operation, result):
                yield fact
                if committed:
                    (ref,) = fact.sequences
                    seen.pending.append((answer.step, ref, committed))
        for copy in answer.copies:
            blocks = self.tables.copy(copy.source, copy.target)
            yield Fact(text=f"{where}: a frame that forks share is copied", blocks=blocks)
        yield from self._news(event.engine, answer.notices)

    def _complete(self, engine: EngineId, completed: StepNumber) -> Iterator[Fact]:
        pending = self._seen(engine).pending
        while pending and pending[0][0] <= completed:
            step, ref, blocks = pending.popleft()
            for block in blocks:
                block.content.published = True
            text = f"published, step {step} of engine {engine} has completed"
            yield self._about({ref}, text, blocks)

    def _news(self, engine: EngineId, notices: tuple[Notice, ...]) -> Iterator[Fact]:
        seen = self._seen(engine)
        for notice in notices:
            if notice.revision <= seen.told or not isinstance(notice, SequenceMoved):
                continue
            seen.told = notice.revision
            line = self.tables.line(engine, notice.sequence)
            if notice.state is SequenceState.RESIDENT:
                known = notice.valid_tokens // self._block_tokens
                gone = self.tables.settle(line, notice.block_table, known)
                if gone:
                    text = f"copies gone, sequence {notice.sequence} of engine {engine} has their frames now"
                    yield Fact(text=text, blocks=gone)
            elif notice.state in (SequenceState.SWAPPED, SequenceState.DROPPED):
                self.tables.leave(line)
            blocks = self.tables.held(line) if notice.block_table else ()
            yield self._about({line.ref}, f"engine {engine} is told: {notice_words(notice)}", blocks)

    def _lose(self, engine: EngineId, why: str) -> Iterator[Fact]:
        """The engine is gone, and with it what it had not published."""
        yield self._of_engine(engine, why)
        for step, ref, blocks in self._seen(engine).pending:
            text = f"never published: step {step} of engine {engine} did not complete"
            yield self._about({ref}, text, blocks)
            for block in blocks:
                # Perhaps not even written.
                block.content.key = NO_KEY
        self._end(engine)

    def _end(self, engine: EngineId) -> None:
        for line in self.tables.lines_of(engine):
            self.tables.end(line)
        self._seen(engine).pending.clear()

    def _of_engine(self, engine: EngineId, text: str) -> Fact:
        return self._about({line.ref for line in self.tables.lines_of(engine)}, text)

    def _seen(self, engine: EngineId) -> Seen:
        return self.engines.setdefault(engine, Seen())

    # ------------------------------------------------------------------------- concerned

    def _about(self, refs: set[Ref], text: str, blocks: tuple[Held, ...] = ()) -> Fact:
        return Fact(
            text=text, blocks=blocks, sequences=frozenset(refs), sessions=self.tables.sessions_of(refs)
        )

    def _named(self, event: Event) -> set[Ref]:
        """The sequences that an event names."""
        if not isinstance(event, Step | Single):
            return set()
        operations = event.operations if isinstance(event, Step) else (event.operation,)
        return {Ref(event.engine, each) for operation in operations for each in sequences_of(operation)}
