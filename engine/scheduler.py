"""Continuous batching: which streams run, who waits, who makes room for whom.

Turns what streams need into the operations of the next step, and the step's answer into states of streams.
It calls nothing, computes nothing and reads no clock: `exchange.py` sends the operations, `engine.py` runs
the model. Where blocks are, it reads off the client's tables. `scheduling/order.py` says whose turn it is,
`scheduling/entries.py` who comes in, `scheduling/preemption.py` who makes room, `scheduling/hints.py` what is
brought up meanwhile, and `scheduling/answers.py` takes in what was answered.

Want of memory is never an error. Whoever finds no room asks again with the next step. Where nobody may be
preempted, who wants in asks only when room for all that it will need is certain.

Who is to be forked takes room for exactly its tokens, because a fork shares the last block as part-filled by
what was asked for. Whoever shares it asks for room before it writes, and is given a block of its own.
Tests: tests/engine/test_scheduler.py, test_haste.py, test_preemption.py, test_fairness.py, test_samples.py,
test_beams.py, test_promises.py.
"""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from enum import Enum, auto

from engine.requests import NO_SEQUENCE, Request, Stream, StreamState, Work
from engine.scheduling.answers import Answers
from engine.scheduling.entries import Entries
from engine.scheduling.growth import find_growth, has_room
from engine.scheduling.hints import Hints
from engine.scheduling.order import Order
from engine.scheduling.preemption import Preemption
from engine.scheduling.promises import Promises
from engine.scheduling.roster import Roster
from kvstore.client import BlockTables, KeyChain, operations
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["Haste", "Scheduler"]


class Haste(Enum):
    """How soon a step has to go. Blocks that answers have filled are in none: some step will take them."""

    NOW = auto()  # Somebody waits, or lacks room for the next pass.
    SOON = auto()  # Others may wait for what is given back, or come with a prompt that was computed.
    NONE = auto()


# What a priority is worth in waiting: so long one waits for another that is higher by one.
AGEING_SECONDS = 10.0
NOTHING = Work([])


class Scheduler:
    def __init__(
        self,
        block_tokens: int,
        *,
        running_max: int = 16,
        ageing_seconds: float = AGEING_SECONDS,
        promises: Promises | None = None,
        finds_blocks: bool = False,
    ) -> None:
        """`promises`: by which requests are admitted, and nobody is preempted; None: while there is room.

        `finds_blocks`: what one has computed others find, so they wait for it where it is under way.
        """
        self._block_tokens = block_tokens
        self._roster = Roster()
        self._order = Order(ageing_seconds)
        self._preemption = Preemption(self._roster, is_allowed=promises is None)
        self._hints = Hints()
        self._answers = Answers(block_tokens, self._roster, self._order, self._preemption, self._hints)
        # When the last step was made, on the clock of `Request.arrived`.
        self._now = 0.0
        # Since then somebody has come.
        self._has_newcomers = False
        self._entries = Entries(
            block_tokens,
            self._roster,
            self._order,
            self._preemption,
            running_max=running_max,
            promises=promises,
            finds_blocks=finds_blocks,
        )

    def submit(self, request: Request) -> Stream:
        """The first sample of the request; the others are its followers."""
        stream, *followers = [self._new_stream(request, sample) for sample in range(request.samples)]
        stream.followers = followers
        stream.width = max(request.samples, request.beams)
        self._has_newcomers = True
        self._order.join(stream, self._roster.streams)
        self._roster.add(stream)
        return stream

    def _new_stream(self, request: Request, sample: int) -> Stream:
        chain = KeyChain(self._block_tokens)
        chain.extend(request.prompt)
        return Stream(
            request=request,
            sample=sample,
            chain=chain,
            tokens=list(request.prompt),
            level=request.priority,
            waits_since=request.arrived,
        )

    @property
    def streams(self) -> Sequence[Stream]:
        """Those that run, or wait to."""
        return self._roster.streams

    def has(self, stream: Stream) -> bool:
        """Whether it is one of those that run, or wait to."""
        return stream in self._roster.streams

    @property
    def holding(self) -> Sequence[Stream]:
        """Those that have memory on the GPU, or are about to."""
        return self._roster.holding

    @property
    def preemptions(self) -> int:
        return self._preemption.count

    @property
    def has_work(self) -> bool:
        return bool(self._roster.streams or self._roster.ended)

    @property
    def is_behind(self) -> bool:
        """A step that was sent ahead is not enough: since it was made somebody has come, or has left while
        others wait, or goes on in shared blocks, or what one waits for has been computed, and the next one
        would let them in only with the pass after the next."""
        has_left = bool(self._roster.ended and self._roster.outside)
        goes_on = any(self._is_behind_for(stream) for stream in self._roster.streams)
        return self._has_newcomers or has_left or goes_on or self._entries.are_behind

    def _is_behind_for(self, stream: Stream) -> bool:
        """Whether it asks for what only the pass has shown, and is not computed before it has that."""
        is_short = stream.takes_room_exactly and not stream.has_room
        return stream.state is StreamState.FORKING or (is_short and stream.state is StreamState.RUNNING)

    @property
    def is_waiting(self) -> bool:
        """Nothing is to be told to the store that could help: only it can, or time."""
        return bool(self._roster.streams) and not self._roster.ended and not self._preemption.is_pending

    # ------------------------------------------------------------------ the step to send

    def haste(self, under_way: Work) -> Haste:
        """For what the next step would tell, sent while this pass runs."""
        running = all(stream.state is StreamState.RUNNING for stream in self._roster.streams)
        if not (running and self._preemption.is_calm and has_room(self._roster, under_way)):
            return Haste.NOW
        tells = (stream.has_prompt_to_commit(self._block_tokens) for stream in self._roster.streams)
        return Haste.SOON if self._roster.ended or any(tells) else Haste.NONE

    def operations(
        self, tables: BlockTables, now: float, under_way: Work = NOTHING, *, spare_tokens: int = 0
    ) -> list[pb.Operation]:
        """What the next step is to ask for. Each call's operations must be sent, and answered to `take`.

        now        seconds on the clock of `Request.arrived`
        under_way  a pass whose results are not there yet, where the step is sent while the one before runs.
                   They may come before the step's answer is taken, or after it.
        spare_tokens   of answers, for which room is asked beyond that, while memory is plenty
        """
        self._now, self._has_newcomers = now, False
        self._entries.begin()
        found = [*self._commits(), *self._forks(), *self._frees(), *self._swaps_out(under_way)]
        is_plenty = self._preemption.is_calm and not self._roster.outside
        spare = spare_tokens if is_plenty else 0
        found += find_growth(self._roster, tables, under_way, spare, self._block_tokens)
        return [*found, *self._entries.next(tables, now, under_way)]

    def _commits(self) -> Iterable[pb.Operation]:
        """Blocks that the step before has filled."""
        for stream in (*self._roster.streams, *self._roster.ended):
            full = stream.computed // self._block_tokens
            if stream.sequence != NO_SEQUENCE and full > stream.committed_blocks:
                first, stream.committed_blocks = stream.committed_blocks, full
                yield operations.commit(stream.sequence, first, stream.chain.keys[first:full])

    def _forks(self) -> Iterable[pb.Operation]:
        children: dict[int, list[int]] = {}
        for stream in self._roster.streams:
            if stream.state is StreamState.FORKING:
                self._roster.number(stream)
                children.setdefault(stream.parent, []).append(stream.sequence)
        for parent, sequences in children.items():
            yield operations.fork(parent, sequences)

    def _frees(self) -> Iterable[pb.Operation]:
        held = self._roster.take_ended()
        if held:
            # Without a word of what is to become of them: whether a session's turn goes to disk at once is
            # the service's to say (serve --disk-admission).
            yield operations.free([stream.sequence for stream in held])
            for stream in held:
                stream.sequence = NO_SEQUENCE
            self._preemption.note_left()

    def _swaps_out(self, under_way: Work) -> Iterable[pb.Operation]:
        for victim in self._preemption.take(self._now):
            yield operations.swap_out(victim.sequence, victim.computed + under_way.tokens_of(victim))

    def next_hint(self, frames: int) -> Sequence[bytes]:
        """What to bring up from disk for one who waits to come in, the GPU tier having so many frames; empty:
        nothing now."""
        if not self._roster.outside:
            return ()
        waiting = self._order.waiting(self._roster.outside, self._now)
        stream, blocks = self._hints.next(waiting, frames, self._block_tokens)
        return stream.chain.keys[:blocks] if stream is not None else ()

    # ------------------------------------------------------------------ what was answered

    def take(self, asked: Sequence[pb.Operation], response: pb.StepResponse) -> list[Stream]:
        """Takes in a step's answer; returns streams whose blocks are on the GPU now, or that have failed."""
        return self._answers.take(asked, response, self._now)

    def take_events(self, events: Iterable[pb.Event]) -> list[Stream]:
        """As `take`, for what the store has done by itself."""
        return self._answers.take_events(events)

    # ------------------------------------------------------------------------- what runs

    def next_work(self) -> Work | None:
        """A token for all who decode, and a chunk of the first stream that has more than one to compute."""
        ready = [each for each in self._roster.running if each.tokens_pending and each.has_room]
        if not ready:
            return None
        prefilled = [stream for stream in ready if stream.tokens_pending > 1][:1]
        decoded = [stream for stream in ready if stream.tokens_pending == 1]
        self._order.shares.note_answers(stream.request.user for stream in decoded)
        return Work(decoded, prefilled, sum(stream.next_chunk for stream in prefilled))

    def fork(self, stream: Stream) -> None:
        """It has computed the prompt, and each follower has its first token: those that go on come in."""
        followers, stream.followers = stream.followers, []
        going_on = [each for each in followers if not each.is_done]
        stream.width = 1
        for follower in going_on:
            self._share(follower, stream)

    def branch(self, parent: Stream) -> Stream:
        """A new stream that goes on from the same tokens: by a fork, or by key where the parent is away or is
        still being computed, as after a loss of the service."""
        branch = Stream(request=parent.request, chain=deepcopy(parent.chain), tokens=list(parent.tokens))
        self._share(branch, parent)
        if parent.state is not StreamState.RUNNING or parent.tokens_pending:
            branch.start_over()
        return branch

    def _share(self, stream: Stream, parent: Stream) -> None:
        """With the next step, for which nothing is written in between."""
        stream.state, stream.parent = StreamState.FORKING, parent.sequence
        stream.computed, stream.room = parent.computed, parent.room
        stream.committed_blocks = parent.computed // self._block_tokens
        stream.cached, stream.admissions = parent.cached, parent.admissions
        self._roster.add_behind(stream, parent, self._now)

    def cancel(self, stream: Stream, reason: str) -> None:
        """Ends it, and those who follow it; nothing happens to one that is done."""
        if not stream.is_done:
            stream.state, stream.reason = StreamState.CANCELLED, reason
            if self.has(stream):
                self.end(stream)

    def end(self, stream: Stream) -> None:
        """The stream is done: its blocks are committed and freed with the next step."""
        self._roster.end(stream)

    def start_over(self) -> None:
        """The service was lost: all unfinished streams are admitted again, by key."""
        self._roster.start_all_over(self._now)
        self._preemption.start_over()
        self._hints.start_over()
