"""The log of a run in words: a line for each thing that happened to a frame."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kvstore.core.answers import StepAnswer
from kvstore.core.calls import Detach, Single, Step
from kvstore.core.columns import as_allocates
from kvstore.core.effects import Transfer
from kvstore.core.events import Event, FramesReturned, TethersClosed, TransferEnded
from kvstore.core.notices import SequenceMoved
from kvstore.core.operations import (
    Allocate,
    AllocateResult,
    Commit,
    Fork,
    Free,
    Grow,
    GrowResult,
    Operation,
    Swap,
    SwapResult,
    UpdateActivity,
)
from kvstore.core.types import Direction, EngineId, Outcome, SequenceState, Tier, TransferId
from kvstore.sim.records import Executed, Handled, Happened, Moved, Record
from kvstore.sim.texts import BLOCK_TOKENS
from kvstore.sim.work import CopyFrame, ReadTokens, WriteTokens
from kvstore.sim.wrong import Place

__all__ = ["Line", "Teller"]


@dataclass(frozen=True, slots=True)
class Line:
    """`places` is empty for what concerns all. The first of them may be filled from another, or given out."""

    time: float
    text: str
    places: tuple[Place, ...]
    filled_from: Place | None = None
    is_grant: bool = False


def _name(place: Place) -> str:
    return f"{place[0].name} frame {place[1]}"


class Teller:
    """Goes through a log and knows, at each point, which sequence has which GPU frames."""

    def __init__(self) -> None:
        self._tables: dict[tuple[int, int], list[int]] = {}
        self._transfers: dict[TransferId, Transfer] = {}

    def lines(self, record: Record) -> Iterator[Line]:
        """Of each record in turn."""
        match record:
            case Happened():
                yield Line(record.time, record.what, ())
            case Moved():
                yield from self._moved(record)
            case Executed():
                yield from self._executed(record)
            case Handled():
                yield from self._handled(record.time, record)

    # --------------------------------------------------------------------- bytes

    def _moved(self, record: Moved) -> Iterator[Line]:
        for place, (source, target) in enumerate(_pairs(record.transfer)):
            failed = (record.rank, place) in record.failed
            what = "fails, and leaves garbage in" if failed else "is now in"
            who = f"transfer {record.transfer.id}, rank {record.rank}:"
            text = f"{who} what {_name(source)} holds {what} {_name(target)}"
            yield Line(record.time, text, (target, source), source)

    def _executed(self, record: Executed) -> Iterator[Line]:
        work, who = record.work, f"a kernel of engine {record.engine}, step {record.step},"
        if isinstance(work, CopyFrame):
            source, target = (Tier.GPU, work.source), (Tier.GPU, work.target)
            yield Line(
                record.time, f"{who} copies {_name(source)} to {_name(target)}", (target, source), source
            )
        elif isinstance(work, WriteTokens | ReadTokens):
            writes = isinstance(work, WriteTokens)
            first, end = (work.first, work.end) if isinstance(work, WriteTokens) else (0, work.count)
            for block in range(first // BLOCK_TOKENS, -(-end // BLOCK_TOKENS)):
                place = (Tier.GPU, work.table[block])
                verb = "writes" if writes else "reads"
                yield Line(
                    record.time, f"{who} {verb} block {block} of {work.sequence} in {_name(place)}", (place,)
                )

    # -------------------------------------------------------------------- events

    def _handled(self, time: float, record: Handled) -> Iterator[Line]:
        event = record.event
        match event:
            case Step() | Single():
                yield from self._step(time, event, record)
            case TransferEnded(transfer=id) if id in self._transfers:
                for place, pair in enumerate(_pairs(self._transfers[id])):
                    how = "failed" if place in event.failed else "well"
                    how = "did not end in time" if place in event.late else how
                    text = f"transfer {id} has ended: {_name(pair[0])} to {_name(pair[1])} {how}"
                    yield Line(time, text, (pair[1], pair[0]))
            case FramesReturned(transfer=id) if id in self._transfers:
                for place in event.positions:
                    _, target = list(_pairs(self._transfers[id]))[place]
                    yield Line(time, f"{_name(target)} comes back from the late transfer {id}", (target,))
            case Detach() | TethersClosed():
                number = _number(event.engine)
                what = "has detached" if isinstance(event, Detach) else "is gone: its tethers have closed"
                for key, table in list(self._tables.items()):
                    if key[0] == number:
                        yield from self._about(time, key, table, f"engine {number} {what}; with it goes")
                        del self._tables[key]
            case _:
                pass
        if record.effects is None:
            yield Line(time, f"the store fails at {type(event).__name__}", ())
            return
        for transfer in record.effects.transfers:
            self._transfers[transfer.id] = transfer
            for source, target in _pairs(transfer):
                text = f"{_cause(event)} starts transfer {transfer.id}: {_name(source)} to {_name(target)}"
                yield Line(time, text, (target, source))

    def _step(self, time: float, event: Step | Single, record: Handled) -> Iterator[Line]:
        number, answer = _number(event.engine), record.effects.answer if record.effects else None
        if not isinstance(answer, StepAnswer):
            return
        operations = event.operations if isinstance(event, Step) else (event.operation,)
        done = f", {event.completed_step} completed" if isinstance(event, Step) else ""
        who = f"engine {number}, step {answer.step}{done}:"
        for operation, result in zip(operations, answer.results, strict=True):
            yield from self._operation(time, number, who, operation, result)
        for copy in answer.copies:
            places = ((Tier.GPU, int(copy.target)), (Tier.GPU, int(copy.source)))
            text = f"{who} is to copy {_name(places[1])} to {_name(places[0])}"
            yield Line(time, text, places)
        for notice in answer.notices:
            if isinstance(notice, SequenceMoved):
                key = (number, int(notice.sequence))
                yield from self._moved_by_store(time, who, key, notice)

    def _operation(
        self, time: float, number: int, who: str, operation: Operation, result: object
    ) -> Iterator[Line]:
        match operation, result:
            case Allocate(), AllocateResult(outcome=Outcome.OK):
                key = (number, int(operation.sequence))
                before = self._tables.get(key, [])
                table = before[: result.first_block] + list(result.block_table)
                yield from self._given(time, key, before, table, f"{who} Allocate gives")
            case Grow(), GrowResult():
                for single, outcome in as_allocates(operation, result):
                    yield from self._operation(time, number, who, single, outcome)
            case Swap(direction=Direction.IN), SwapResult(outcome=Outcome.OK):
                key = (number, int(operation.sequence))
                yield from self._given(time, key, [], list(result.block_table), f"{who} Swap in gives")
            case Swap(direction=Direction.OUT), SwapResult():
                key = (number, int(operation.sequence))
                text = f"{who} Swap out ({operation.mode.name}, now {result.state.name}) takes"
                yield from self._about(time, key, self._tables.get(key, []), text)
            case Fork(), _:
                parent = self._tables.get((number, int(operation.parent)), [])
                for child in operation.children:
                    key = (number, int(child))
                    yield from self._given(time, key, [], parent, f"{who} Fork of {operation.parent} shares")
            case Free(), _:
                for sequence in operation.sequences:
                    key = (number, int(sequence))
                    text = f"{who} Free ({operation.retention.name}) gives up"
                    yield from self._about(time, key, self._tables.pop(key, []), text)
            case Commit(), _:
                key = (number, int(operation.sequence))
                end = operation.first_block + len(operation.block_keys)
                table = self._tables.get(key, [])[:end]
                text = f"{who} Commit, to count when the steps before have completed, of"
                yield from self._about(time, key, table, text, operation.first_block)
            case UpdateActivity(), _:
                key = (number, int(operation.sequence))
                text = f"{who} is {operation.activity.name}:"
                yield from self._about(time, key, self._tables.get(key, []), text)
            case _:
                pass

    def _moved_by_store(
        self, time: float, who: str, key: tuple[int, int], notice: SequenceMoved
    ) -> Iterator[Line]:
        if notice.state is SequenceState.RESIDENT:
            yield from self._given(time, key, [], list(notice.block_table), f"{who} is told: back is")
        else:
            text = f"{who} is told: {notice.state.name} is"
            yield from self._about(time, key, self._tables.get(key, []), text)

    def _given(
        self, time: float, key: tuple[int, int], before: list[int], table: Iterable[int], text: str
    ) -> Iterator[Line]:
        self._tables[key] = [int(frame) for frame in table]
        for block, frame in enumerate(self._tables[key]):
            if block >= len(before) or before[block] != frame:
                yield self._block(time, key, block, frame, text, is_grant=True)

    def _about(
        self, time: float, key: tuple[int, int], table: list[int], text: str, first: int = 0
    ) -> Iterator[Line]:
        for block in range(first, len(table)):
            yield self._block(time, key, block, table[block], text)

    def _block(
        self, time: float, key: tuple[int, int], block: int, frame: int, text: str, *, is_grant: bool = False
    ) -> Line:
        place = (Tier.GPU, frame)
        of = f"block {block} of sequence {key[1]} of engine {key[0]}"
        return Line(time, f"{text} {of}, {_name(place)}", (place,), is_grant=is_grant)


def _pairs(transfer: Transfer) -> Iterator[tuple[Place, Place]]:
    for source, target in zip(transfer.source_frames, transfer.target_frames, strict=True):
        yield (transfer.source, int(source)), (transfer.target, int(target))


def _number(engine: EngineId) -> int:
    return int(engine.rpartition("-")[2])


def _cause(event: Event) -> str:
    return (
        f"the end of transfer {event.transfer}" if isinstance(event, TransferEnded) else type(event).__name__
    )
