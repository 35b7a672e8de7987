"""What the store has said of this engine's sequences: where their blocks are.

Work here is per operation and per changed block, in plain lists: numpy is called once for all the slots of a
batch, and a table that did not change is not copied.

A response is taken in the order of the contract's phases, not of the request: forks, frees, swaps out,
Grows, allocations, swaps in; then its events, for they tell how things are after the step.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from kvstore.client.errors import ClientError, SharedTail
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["BlockTables"]

State: TypeAlias = pb.Sequence.State.ValueType
# States in which the store holds no frames for a sequence.
AWAY = (pb.Sequence.SWAPPED, pb.Sequence.DROPPED)
# The order in which a step is applied (kvstore.proto, Step), as far as tables are concerned.
_FORK, _FREE, _ACTIVITY, _SWAP_OUT, _GROW, _ALLOCATE, _RESUME, _SWAP_IN, _NOTHING = range(9)
_PHASES = {
    "allocate": _ALLOCATE,
    "grow": _GROW,
    "fork": _FORK,
    "free": _FREE,
}


@dataclass(slots=True)
class _Row:
    state: State
    frames: list[int]  # In token order. Those of a SWAPPING_IN sequence are not to be read yet.
    token_count: int  # For so many tokens there is room, as last allocated.
    tail_shared: bool  # The part-filled last block may be another sequence's too, until the next Allocate.
    valid_tokens: int = 0  # Leading tokens whose KV was there when the table was last filled.

    def move(self, state: State, frames: Sequence[int]) -> None:
        """`frames`: the whole table, or none where it stays as it is."""
        if state == pb.Sequence.STATE_UNSPECIFIED:  # Nothing was said.
            return
        self.state = state
        if state in AWAY:
            self.frames.clear()
        elif frames:
            self.frames[:] = frames


class BlockTables:
    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._rows: dict[int, _Row] = {}
        # Children of an answer that is being taken in, whose parents are seen as they were before it.
        self._forked_unseen: dict[int, int] = {}

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._rows

    def table(self, sequence: int) -> list[int]:
        """The list itself, not a copy: later steps change it in place. Read it, leave it as it is."""
        return self._row(sequence).frames

    def state(self, sequence: int) -> State:
        return self._row(sequence).state

    def valid_tokens(self, sequence: int) -> int:
        """Leading tokens that were found, or had come back, when the sequence last took its frames.

        Not to be relied on before it is RESIDENT: a load may fail. What the engine has computed since
        it knows itself.
        """
        return self._row(sequence).valid_tokens

    def slots(self, sequence: int, first_token: int, token_count: int) -> npt.NDArray[np.int64]:
        """Where the KV of these tokens is to be written (`slot_mapping`)."""
        return self.slots_of([(sequence, first_token, token_count)])

    def slots_of(self, spans: Iterable[tuple[int, int, int]]) -> npt.NDArray[np.int64]:
        """The slots of a whole batch, one span of tokens after the other, as in `slots`."""
        slots: list[int] = []
        size = self._block_tokens
        for sequence, first, count in spans:
            frames = self._writable(sequence, first, count).frames
            at, end = first, first + count
            while at < end:
                offset = at % size
                length = min(size - offset, end - at)
                start = frames[at // size] * size + offset
                slots.extend(range(start, start + length))
                at += length
        return np.array(slots, dtype=np.int64)

    def apply(self, operations: Sequence[pb.Operation], response: pb.StepResponse) -> None:
        """Takes in the answer to a step, once; its events must be new."""
        if len(operations) != len(response.results):
            raise ClientError(
                f"{len(operations)} operations were answered by {len(response.results)} results"
            )
        apply_by_phase = (
            self._apply_fork,
            self._apply_free,
            self._apply_activity,
            self._apply_swap,
            self._apply_grow,
            self._apply_allocate,
            self._apply_resume,
            self._apply_swap,
        )
        results = response.results[:]
        # The index makes those of one phase keep their order.
        for phase, index in sorted([(_phase(each), index) for index, each in enumerate(operations)]):
            if phase != _NOTHING:
                apply_by_phase[phase](operations[index], results[index])
        self.apply_events(response.events.events)
        self._look_at_parents()

    def _look_at_parents(self) -> None:
        """A child is where its parent was when it was forked: on the GPU, or it would not have been."""
        for child, parent_id in self._forked_unseen.items():
            row, parent = self._rows.get(child), self._rows.get(parent_id)
            if row and parent and row.state != pb.Sequence.RESIDENT:
                row.move(parent.state, parent.frames)
                row.valid_tokens = parent.valid_tokens
        self._forked_unseen.clear()

    def apply_events(self, events: Iterable[pb.Event]) -> None:
        for event in events:
            moved = event.sequence_moved
            # Of a sequence that was freed, events may still be on their way.
            row = self._rows.get(moved.sequence) if event.HasField("sequence_moved") else None
            if row is not None:
                row.move(moved.state, moved.block_table)
                row.valid_tokens = moved.valid_tokens

    def _apply_fork(self, operation: pb.Operation, result: pb.Result) -> None:
        request = operation.fork
        if result.fork.outcome != pb.OUTCOME_OK:
            return
        parent = self._row(request.parent)
        part_filled = parent.token_count % self._block_tokens != 0
        for child in request.children:
            if child not in self._rows:
                tokens, valid = parent.token_count, parent.valid_tokens
                self._rows[child] = _Row(parent.state, list(parent.frames), tokens, part_filled, valid)
                parent.tail_shared = part_filled
                # What has brought the parent back stands in an event of this answer.
                if parent.state != pb.Sequence.RESIDENT:
                    self._forked_unseen[child] = request.parent

    def _apply_free(self, operation: pb.Operation, _: pb.Result) -> None:
        for sequence in operation.free.sequences:
            self._rows.pop(sequence, None)

    def _apply_activity(self, operation: pb.Operation, result: pb.Result) -> None:
        """This answer has no table; where the sequence has come back at once, the event after it has."""
        row = self._rows.get(operation.update_activity.sequence)
        if row is not None:
            row.move(result.update_activity.state, ())

    def _apply_resume(self, operation: pb.Operation, result: pb.Result) -> None:
        """Of a sequence that was away it is a swap in; one that was there later phases may have moved."""
        if result.update_activity.state != pb.Sequence.RESIDENT:
            self._apply_activity(operation, result)

    def _apply_swap(self, operation: pb.Operation, result: pb.Result) -> None:
        request, response = operation.swap, result.swap
        row = self._row(request.sequence)
        row.move(response.state, response.block_table)
        if request.direction == pb.SwapRequest.IN and response.outcome == pb.OUTCOME_OK:
            row.valid_tokens = response.valid_tokens

    def _apply_allocate(self, operation: pb.Operation, result: pb.Result) -> None:
        request = operation.allocate
        self._take(request.sequence, request.token_count, request.known_blocks, result.allocate)

    def _apply_grow(self, operation: pb.Operation, result: pb.Result) -> None:
        request, response = operation.grow, result.grow
        sequences, token_counts, counts = (
            request.sequences[:],
            request.token_counts[:],
            response.frame_counts[:],
        )
        if len(counts) != len(sequences):
            raise ClientError(f"a Grow of {len(sequences)} sequences was answered with {len(counts)}")
        known_blocks = request.known_blocks[:] or [0] * len(sequences)
        others = {other.place: other.result for other in response.others}
        frames, begin = response.frames[:], 0
        for place, (sequence, token_count, known, count) in enumerate(
            zip(sequences, token_counts, known_blocks, counts, strict=True)
        ):
            if place in others:
                self._take(sequence, token_count, known, others[place])
            else:
                row = self._row(sequence)
                row.state = pb.Sequence.RESIDENT
                self._put(row, sequence, known, known, frames[begin : begin + count])
                row.token_count = max(row.token_count, token_count)
                row.tail_shared = False
                begin += count

    def _take(
        self, sequence: int, token_count: int, known_blocks: int, response: pb.AllocateResponse
    ) -> None:
        """The hot one: each field is read once, and no row is made where there is one."""
        outcome = response.outcome
        if outcome == pb.OUTCOME_NEVER:
            return
        row = self._rows.get(sequence)
        if row is None:
            row = self._rows[sequence] = _Row(pb.Sequence.DROPPED, [], 0, False)
        was_away, state = row.state in AWAY, response.state
        if state != row.state:
            row.move(state, ())
        if outcome == pb.OUTCOME_LATER:
            return
        if was_away:
            row.valid_tokens = response.cached_tokens
        self._put(row, sequence, known_blocks, response.first_block, response.block_table[:])
        row.token_count = max(row.token_count, token_count)
        row.tail_shared = False

    def _put(
        self, row: _Row, sequence: int, known_blocks: int, first_block: int, frames: Sequence[int]
    ) -> None:
        if first_block > len(row.frames):
            raise ClientError(
                f"sequence {sequence}: {len(row.frames)} blocks are known, the answer starts at "
                f"block {first_block}; known_blocks was {known_blocks}"
            )
        row.frames[first_block:] = frames

    def _row(self, sequence: int) -> _Row:
        try:
            return self._rows[sequence]
        except KeyError:
            raise ClientError(f"sequence {sequence} was never allocated, or is freed") from None

    def _writable(self, sequence: int, first: int, count: int) -> _Row:
        """The row, if this span of it may be written to."""
        row, size = self._row(sequence), self._block_tokens
        if row.state != pb.Sequence.RESIDENT:
            raise ClientError(
                f"sequence {sequence} is {pb.Sequence.State.Name(row.state)}: not to be written to"
            )
        if first < 0 or count < 0 or first + count > len(row.frames) * size:
            raise ClientError(
                f"sequence {sequence} has room for {len(row.frames) * size} tokens, and not "
                f"for {count} from {first} on"
            )
        if row.tail_shared and count and (first + count - 1) // size >= row.token_count // size:
            raise SharedTail(
                f"sequence {sequence} shares its last block since a fork: Allocate before writing to it"
            )
        return row


def _phase(operation: pb.Operation) -> int:
    kind = operation.WhichOneof("kind") or ""
    if kind == "swap":
        return _SWAP_IN if operation.swap.direction == pb.SwapRequest.IN else _SWAP_OUT
    if kind == "update_activity":
        return _RESUME if operation.update_activity.activity == pb.ACTIVITY_RUNNING else _ACTIVITY
    return _PHASES.get(kind, _NOTHING)
