"""Continuous batching: which streams run, who waits, who makes room for whom.

Turns what streams need into the operations of the next step, and the step's answer into states of streams.
It calls nothing and computes nothing: `engine.py` sends the operations and runs the model. Where blocks are,
it reads off the client's tables.

Want of memory is never an error. Whoever finds no room asks again with the next step. When the store says
that no room is coming, the most recent running stream of the lowest priority is swapped out; a preempted
stream asks to come back after another has left, so that two do not push each other out for ever.

Who is to be forked takes room for exactly its tokens, because a fork shares the last block as part-filled by
what was asked for. Whoever shares it asks for room before it writes, and is given a block of its own.
Tests: tests/engine/test_scheduler.py, test_preemption.py, test_samples.py, test_beams.py.
"""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from itertools import count

from engine.requests import NO_SEQUENCE, Cached, Request, Stream, StreamState, Work
from kvstore.client import BlockTables, KeyChain, operations
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["Scheduler"]

AWAY = (pb.Sequence.SWAPPED, pb.Sequence.DROPPED)
HOLDING = (StreamState.LOADING, StreamState.RUNNING, StreamState.FORKING)
OUTSIDE = (StreamState.QUEUED, StreamState.PREEMPTED)


class Scheduler:
    def __init__(self, block_tokens: int, *, running_max: int = 16) -> None:
        self._block_tokens = block_tokens
        self._running_max = running_max
        # Unfinished ones in order of precedence: by priority, and among equals who came first.
        self._streams: list[Stream] = []
        # Done; what the store holds for them goes back with the next step.
        self._ended: list[Stream] = []
        self._by_sequence: dict[int, Stream] = {}
        self._victim: Stream | None = None
        # Whether a stream has left since the last preemption.
        self._has_room_changed = True
        self._sequences = count(1)

    def submit(self, request: Request) -> Stream:
        """The first sample of the request; the others are its followers."""
        stream, *followers = [self._new_stream(request, sample) for sample in range(request.samples)]
        stream.followers = followers
        stream.width = max(request.samples, request.beams)
        self._streams.append(stream)
        # The sort is stable, so equals stay in the order in which they came.
        self._streams.sort(key=lambda each: -each.request.priority)
        return stream

    def _new_stream(self, request: Request, sample: int) -> Stream:
        chain = KeyChain(self._block_tokens)
        chain.extend(request.prompt)
        return Stream(request=request, sample=sample, chain=chain, tokens=list(request.prompt))

    def has(self, stream: Stream) -> bool:
        """Whether it is one of those that run, or wait to."""
        return stream in self._streams

    @property
    def has_work(self) -> bool:
        return bool(self._streams or self._ended)

    @property
    def is_waiting(self) -> bool:
        """Nothing is to be told to the store that could help: only it can, or time."""
        return bool(self._streams) and not self._ended and self._victim is None

    # ------------------------------------------------------------------ the step to send

    def operations(self, tables: BlockTables) -> list[pb.Operation]:
        """What the next step is to ask for. Each call's operations must be sent, and answered to `take`."""
        found = [*self._commits(), *self._forks(), *self._frees(), *self._swaps_out()]
        return [*found, *self._growth(tables), *self._entries(tables)]

    def _commits(self) -> Iterable[pb.Operation]:
        """Blocks that the step before has filled."""
        for stream in (*self._streams, *self._ended):
            full = stream.computed // self._block_tokens
            if stream.sequence != NO_SEQUENCE and full > stream.committed_blocks:
                first, stream.committed_blocks = stream.committed_blocks, full
                yield operations.commit(stream.sequence, first, stream.chain.keys[first:full])

    def _forks(self) -> Iterable[pb.Operation]:
        children: dict[int, list[int]] = {}
        for stream in self._streams:
            if stream.state is StreamState.FORKING:
                stream.sequence = next(self._sequences)
                self._by_sequence[stream.sequence] = stream
                children.setdefault(stream.parent, []).append(stream.sequence)
        for parent, sequences in children.items():
            yield operations.fork(parent, sequences)

    def _frees(self) -> Iterable[pb.Operation]:
        ended, self._ended = self._ended, []
        held = [stream for stream in ended if stream.sequence != NO_SEQUENCE]
        turns = [stream.sequence for stream in held if stream.request.session]
        others = [stream.sequence for stream in held if not stream.request.session]
        if turns:
            yield operations.free(turns, pb.FreeRequest.SESSION)
        if others:
            yield operations.free(others, pb.FreeRequest.CACHE)
        for stream in held:
            del self._by_sequence[stream.sequence]
            stream.sequence = NO_SEQUENCE
        self._has_room_changed |= bool(held)

    def _swaps_out(self) -> Iterable[pb.Operation]:
        victim, self._victim = self._victim, None
        if victim is not None and victim.state is StreamState.RUNNING:
            victim.state = StreamState.PREEMPTED
            victim.preemptions += 1
            self._has_room_changed = False
            yield operations.swap_out(victim.sequence, victim.computed)

    def _growth(self, tables: BlockTables) -> Iterable[pb.Operation]:
        full = [
            stream
            for stream in self._streams
            if stream.state is StreamState.RUNNING and not self._has_room(stream)
        ]
        if full:
            yield operations.grow(
                [stream.sequence for stream in full],
                [self._room_needed(stream) for stream in full],
                [len(tables.table(stream.sequence)) for stream in full],
            )

    def _entries(self, tables: BlockTables) -> Iterable[pb.Operation]:
        """Those who want in, in order, as many as may run at once. None overtakes one who can't yet."""
        places = self._running_max - sum(each.width for each in self._streams if each.state in HOLDING)
        is_returning = False
        # A beam that has nothing to compute until the others of its search have come on stays where it is.
        for stream in [each for each in self._streams if each.state in OUTSIDE and each.tokens_pending]:
            # One that is wider than all places enters when it is alone.
            if places < min(stream.width, self._running_max):
                return
            places -= stream.width
            if stream.state is StreamState.PREEMPTED:
                if not self._may_return(stream, tables):
                    return
                is_returning = True
                yield operations.swap_in(stream.sequence)
            elif is_returning:
                # In one step new ones are served first; these wait for the next.
                return
            else:
                yield self._first_allocate(stream)

    def _may_return(self, stream: Stream, tables: BlockTables) -> bool:
        # Asked while it is still on its way out it would come back at once.
        is_away = tables.state(stream.sequence) in AWAY
        nobody_holds = not any(each.state in HOLDING and each.tokens_pending for each in self._streams)
        return is_away and (self._has_room_changed or nobody_holds)

    def _first_allocate(self, stream: Stream) -> pb.Operation:
        if stream.sequence != NO_SEQUENCE:  # Asked before: the store has kept the rest.
            return operations.allocate(stream.sequence, self._room_needed(stream))
        stream.sequence = next(self._sequences)
        self._by_sequence[stream.sequence] = stream
        # The block with the last token is never a hit: its logits have to be computed.
        usable = (len(stream.tokens) - 1) // self._block_tokens
        return operations.allocate(
            stream.sequence,
            self._room_needed(stream),
            block_keys=stream.chain.keys[:usable],
            session=stream.request.session,
            turn=stream.request.turn,
            priority=stream.request.priority,
        )

    def _room_needed(self, stream: Stream) -> int:
        """In tokens, to the end of the last block: then it is asked for once a block, not once a token."""
        if stream.followers or stream.request.beams > 1:
            return len(stream.tokens)
        return -(-len(stream.tokens) // self._block_tokens) * self._block_tokens

    def _has_room(self, stream: Stream) -> bool:
        return stream.room >= len(stream.tokens)

    # ------------------------------------------------------------------ what was answered

    def take(self, asked: Sequence[pb.Operation], response: pb.StepResponse) -> list[Stream]:
        """Takes in a step's answer; returns streams whose blocks are on the GPU now, or that have failed."""
        changed: list[Stream] = []
        for operation, result in zip(asked, response.results, strict=True):
            kind = operation.WhichOneof("kind")
            if kind == "allocate":
                stream = self._by_sequence[operation.allocate.sequence]
                changed += self._take_allocate(stream, result.allocate)
            elif kind == "grow":
                changed += self._take_grow(operation.grow, result.grow)
            elif kind == "fork":
                changed += self._take_fork(operation.fork, result.fork)
            elif kind == "swap" and operation.swap.direction == pb.SwapRequest.IN:
                stream = self._by_sequence[operation.swap.sequence]
                changed += self._take_swap_in(stream, result.swap)
        # Events tell how things are after the step.
        return changed + self.take_events(response.events.events)

    def take_events(self, events: Iterable[pb.Event]) -> list[Stream]:
        """As `take`, for what the store has done by itself."""
        changed: list[Stream] = []
        for event in events:
            moved = event.sequence_moved
            stream = self._by_sequence.get(moved.sequence) if event.HasField("sequence_moved") else None
            # What a swap out came to is read off the tables when the stream wants back.
            if stream is None or stream.state is not StreamState.LOADING:
                continue
            if moved.state == pb.Sequence.RESIDENT:
                stream.arrive(moved.valid_tokens, self._block_tokens)
                changed.append(stream)
            elif moved.state == pb.Sequence.DROPPED:
                # A load failed, and no frames were left to compute into.
                stream.state = StreamState.PREEMPTED
        return changed

    def _take_allocate(self, stream: Stream, response: pb.AllocateResponse) -> list[Stream]:
        if response.outcome == pb.OUTCOME_NEVER:
            self._fail(stream)
            return [stream]
        if response.outcome == pb.OUTCOME_LATER:
            self._note_shortage(stream, response.frames_short)
            return []
        stream.room = self._room_needed(stream)
        if stream.state is StreamState.QUEUED:
            stream.admissions += 1
            stream.cached = Cached(
                gpu=response.gpu_tokens, cpu=response.cpu_tokens, disk=response.disk_tokens
            )
            stream.committed_blocks = response.cached_tokens // self._block_tokens
            return self._enter(stream, response.state, response.cached_tokens)
        return []

    def _take_grow(self, request: pb.GrowRequest, response: pb.GrowResponse) -> list[Stream]:
        changed: list[Stream] = []
        others = {other.place: other.result for other in response.others}
        for place, sequence in enumerate(request.sequences):
            stream = self._by_sequence[sequence]
            if place in others:
                changed += self._take_allocate(stream, others[place])
            else:
                stream.room = self._room_needed(stream)
        return changed

    def _take_fork(self, request: pb.ForkRequest, response: pb.ForkResponse) -> list[Stream]:
        children = [self._by_sequence[sequence] for sequence in request.children]
        if response.outcome != pb.OUTCOME_OK:  # It has no blocks to share: each comes in by itself, by key.
            for stream in children:
                del self._by_sequence[stream.sequence]
                stream.start_over()
            return []
        for stream in children:
            stream.state = StreamState.RUNNING
        return children

    def _take_swap_in(self, stream: Stream, response: pb.SwapResponse) -> list[Stream]:
        if response.outcome == pb.OUTCOME_OK:
            return self._enter(stream, response.state, response.valid_tokens)
        self._note_shortage(stream, response.frames_short)
        return []

    def _enter(self, stream: Stream, state: pb.Sequence.State.ValueType, valid_tokens: int) -> list[Stream]:
        if state == pb.Sequence.RESIDENT:
            stream.arrive(valid_tokens, self._block_tokens)
            return [stream]
        stream.state = StreamState.LOADING
        return []

    def _note_shortage(self, stream: Stream, frames_short: int) -> None:
        """No room is coming by itself: somebody has to go, but nobody for an equal that is not in yet."""
        running = [each for each in self._streams if each.state is StreamState.RUNNING]
        if not frames_short or not running or self._victim is not None:
            return
        # A beam that waits for the others of its search has no use for its frames before they have come on.
        if waiting := [each for each in running if not each.tokens_pending]:
            self._victim = waiting[-1]
            return
        lowest = running[-1]
        if stream.state is StreamState.RUNNING or lowest.request.priority < stream.request.priority:
            self._victim = lowest

    def _fail(self, stream: Stream) -> None:
        blocks = -(-len(stream.tokens) // self._block_tokens)
        stream.reason = (
            f"its {len(stream.tokens)} tokens need {blocks} blocks, and the GPU tier can never hold so many"
        )
        stream.state = StreamState.FAILED
        self.end(stream)

    # ------------------------------------------------------------------------- what runs

    def next_work(self) -> Work | None:
        """A token for all who decode, and a chunk of the first stream that has more than one to compute."""
        ready = [
            stream
            for stream in self._streams
            if stream.state is StreamState.RUNNING and stream.tokens_pending and self._has_room(stream)
        ]
        if not ready:
            return None
        prefilled = [stream for stream in ready if stream.tokens_pending > 1][:1]
        decoded = [stream for stream in ready if stream.tokens_pending == 1]
        return Work(decoded, prefilled, sum(stream.next_chunk for stream in prefilled))

    def fork(self, stream: Stream) -> None:
        """It has computed the prompt, and each follower has its first token: those that go on come in."""
        followers, stream.followers = stream.followers, []
        going_on = [each for each in followers if not each.is_done]
        stream.width = 1
        for follower in going_on:
            self._share(follower, stream)

    def branch(self, parent: Stream) -> Stream:
        """A new stream that goes on from the same tokens: by a fork, or by key where the parent is away."""
        branch = Stream(request=parent.request, chain=deepcopy(parent.chain), tokens=list(parent.tokens))
        self._share(branch, parent)
        if parent.state is not StreamState.RUNNING:
            branch.start_over()
        return branch

    def _share(self, stream: Stream, parent: Stream) -> None:
        """With the next step, for which nothing is written in between."""
        stream.state, stream.parent = StreamState.FORKING, parent.sequence
        stream.computed, stream.room = parent.computed, parent.room
        stream.committed_blocks = parent.computed // self._block_tokens
        stream.cached, stream.admissions = parent.cached, parent.admissions
        self._streams.insert(self._streams.index(parent) + 1, stream)

    def cancel(self, stream: Stream, reason: str) -> None:
        """Ends it, and those who follow it; nothing happens to one that is done."""
        if not stream.is_done:
            stream.state, stream.reason = StreamState.CANCELLED, reason
            if self.has(stream):
                self.end(stream)

    def end(self, stream: Stream) -> None:
        """The stream is done: its blocks are committed and freed with the next step."""
        self._streams.remove(stream)
        self._ended.append(stream)
        for follower in stream.followers:
            if not follower.is_done:
                follower.state, follower.reason = stream.state, stream.reason

    def start_over(self) -> None:
        """The service was lost: all unfinished streams are admitted again, by key."""
        self._ended.clear()
        self._by_sequence.clear()
        self._victim = None
        self._has_room_changed = True
        for stream in self._streams:
            stream.start_over()
