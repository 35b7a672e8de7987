"""A step's answer, as states of streams.

Tests: tests/engine/test_scheduler.py, test_preemption.py, test_haste.py.
"""

from collections.abc import Iterable, Sequence

from engine.requests import Cached, Stream, StreamState
from engine.scheduling.hints import Hints
from engine.scheduling.order import Order
from engine.scheduling.preemption import Preemption
from engine.scheduling.roster import Roster
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["Answers"]


class Answers:
    def __init__(
        self, block_tokens: int, roster: Roster, order: Order, preemption: Preemption, hints: Hints
    ) -> None:
        self._block_tokens = block_tokens
        self._roster = roster
        self._order = order
        self._preemption = preemption
        self._hints = hints

    def take(self, asked: Sequence[pb.Operation], response: pb.StepResponse, now: float) -> list[Stream]:
        """Returns streams whose blocks are on the GPU now, or that have failed."""
        changed: list[Stream] = []
        for operation, result in zip(asked, response.results, strict=True):
            kind = operation.WhichOneof("kind")
            if kind == "allocate":
                stream = self._roster.by_sequence(operation.allocate.sequence)
                changed += self._take_allocate(stream, operation.allocate.token_count, result.allocate, now)
            elif kind == "grow":
                changed += self._take_grow(operation.grow, result.grow, now)
            elif kind == "fork":
                changed += self._take_fork(operation.fork, result.fork)
            elif kind == "swap" and operation.swap.direction == pb.SwapRequest.IN:
                stream = self._roster.by_sequence(operation.swap.sequence)
                changed += self._take_swap_in(stream, result.swap, now)
        # Events tell how things are after the step.
        return changed + self.take_events(response.events.events)

    def take_events(self, events: Iterable[pb.Event]) -> list[Stream]:
        """As `take`, for what the store has done by itself."""
        changed: list[Stream] = []
        for event in events:
            if event.HasField("sequence_moved"):
                changed += self._take_moved(event.sequence_moved)
            elif event.HasField("pressure_changed") and event.pressure_changed.tier == pb.TIER_GPU:
                self._preemption.note_pressure(event.pressure_changed.pressure)
            elif event.HasField("pressure_changed") and event.pressure_changed.tier == pb.TIER_CPU:
                self._hints.note_pressure(event.pressure_changed.pressure)
        return changed

    def _take_moved(self, moved: pb.SequenceMoved) -> list[Stream]:
        for stream in self._roster.find([moved.sequence]):
            # What a swap out came to is read off the tables when the stream wants back.
            if stream.state is not StreamState.LOADING:
                continue
            if moved.state == pb.Sequence.RESIDENT:
                stream.arrive(moved.valid_tokens, self._block_tokens)
                return [stream]
            if moved.state == pb.Sequence.DROPPED:
                # A load failed, and no frames were left to compute into.
                stream.state = StreamState.PREEMPTED
        return []

    def _take_allocate(
        self, stream: Stream, token_count: int, response: pb.AllocateResponse, now: float
    ) -> list[Stream]:
        if stream.is_done:  # Since it was asked for.
            return []
        if response.outcome != pb.OUTCOME_OK and stream.has_room:
            # What it was refused was for tokens to come, and it does without until they are there.
            return []
        if response.outcome == pb.OUTCOME_NEVER:
            self._fail(stream)
            return [stream]
        if response.outcome == pb.OUTCOME_LATER:
            self._preemption.note_shortage(stream, response.frames_short)
            return []
        stream.room = token_count
        if stream.state is not StreamState.QUEUED:
            return []
        stream.admissions += 1
        stream.cached = Cached(gpu=response.gpu_tokens, cpu=response.cpu_tokens, disk=response.disk_tokens)
        stream.committed_blocks = response.cached_tokens // self._block_tokens
        level = self._order.level(stream, now)
        if not stream.place:
            self._order.note_admitted(stream, len(stream.tokens) - response.cached_tokens, now)
        return self._enter(stream, response.state, response.cached_tokens, level)

    def _take_grow(self, request: pb.GrowRequest, response: pb.GrowResponse, now: float) -> list[Stream]:
        changed: list[Stream] = []
        others = {other.place: other.result for other in response.others}
        for place, (sequence, tokens) in enumerate(zip(request.sequences, request.token_counts, strict=True)):
            stream = self._roster.by_sequence(sequence)
            if place in others:
                changed += self._take_allocate(stream, tokens, others[place], now)
            else:
                stream.room = tokens
        return changed

    def _take_fork(self, request: pb.ForkRequest, response: pb.ForkResponse) -> list[Stream]:
        children = [self._roster.by_sequence(sequence) for sequence in request.children]
        if response.outcome != pb.OUTCOME_OK:  # It has no blocks to share: each comes in by itself, by key.
            for stream in children:
                self._roster.start_over(stream)
            return []
        going_on = [stream for stream in children if not stream.is_done]
        for stream in going_on:
            stream.state = StreamState.RUNNING
        return going_on

    def _take_swap_in(self, stream: Stream, response: pb.SwapResponse, now: float) -> list[Stream]:
        if stream.is_done:
            return []
        if response.outcome == pb.OUTCOME_OK:
            level = self._order.level(stream, now)
            return self._enter(stream, response.state, response.valid_tokens, level)
        self._preemption.note_shortage(stream, response.frames_short)
        return []

    def _enter(
        self, stream: Stream, state: pb.Sequence.State.ValueType, valid_tokens: int, level: int
    ) -> list[Stream]:
        self._roster.enter(stream, level)
        if state == pb.Sequence.RESIDENT:
            stream.arrive(valid_tokens, self._block_tokens)
            return [stream]
        stream.state = StreamState.LOADING
        return []

    def _fail(self, stream: Stream) -> None:
        """What it has told of its answer stays told: that ends here, as with a shorter `max_new_tokens`."""
        if stream.margins:
            stream.state = StreamState.FINISHED
            self._roster.end(stream)
            return
        blocks = -(-len(stream.tokens) // self._block_tokens)
        stream.reason = (
            f"its {len(stream.tokens)} tokens need {blocks} blocks, and the GPU tier can never hold so many"
        )
        stream.state = StreamState.FAILED
        self._roster.end(stream)
