"""A scheduler, and the service's side of its talk, by hand."""

from collections.abc import Callable, Iterable

from engine.requests import Request, Stream, Work
from engine.sampling import Choice
from engine.scheduler import Scheduler
from kvstore.client import BlockTables
from kvstore.v1 import kvstore_pb2 as pb

__all__ = [
    "AGEING_SECONDS",
    "Answer",
    "BLOCK_TOKENS",
    "Talk",
    "granted",
    "grown",
    "kinds",
    "moved",
    "pressed",
    "refused",
]

BLOCK_TOKENS = 16
AGEING_SECONDS = 10.0

Answer = Callable[[pb.Operation], pb.Result]


class Talk:
    """A scheduler and the tables that the answers go into."""

    def __init__(self, running_max: int = 16, *, finds_blocks: bool = False) -> None:
        self.scheduler = Scheduler(
            BLOCK_TOKENS, running_max=running_max, ageing_seconds=AGEING_SECONDS, finds_blocks=finds_blocks
        )
        self.tables = BlockTables(BLOCK_TOKENS)
        self.changed: list[Stream] = []
        # In seconds; it stands still unless a test moves it.
        self.now = 0.0

    def submit(
        self,
        tokens: int,
        *,
        first: int = 0,
        answer: int = 8,
        priority: int = 0,
        user: str = "",
        samples: int = 1,
    ) -> Stream:
        prompt = tuple(range(first, first + tokens))
        return self.submit_tokens(prompt, answer=answer, priority=priority, user=user, samples=samples)

    def submit_tokens(
        self,
        prompt: tuple[int, ...],
        *,
        answer: int = 8,
        priority: int = 0,
        user: str = "",
        samples: int = 1,
    ) -> Stream:
        request = Request(
            id=f"r{prompt[0]}",
            prompt=prompt,
            max_new_tokens=answer,
            session="s",
            turn=1,
            priority=priority,
            user=user,
            samples=samples,
            arrived=self.now,
        )
        return self.scheduler.submit(request)

    def step(self, answer: Answer, events: Iterable[pb.Event] = ()) -> list[pb.Operation]:
        operations = self.scheduler.operations(self.tables, self.now)
        response = pb.StepResponse(results=[answer(each) for each in operations])
        response.events.events.extend(events)
        self.tables.apply(operations, response)
        self.changed = self.scheduler.take(operations, response)
        return operations

    def step_ahead(
        self, answer: Answer, events: Iterable[pb.Event] = (), *, answer_first: bool, spare_tokens: int = 0
    ) -> list[pb.Operation]:
        """The next step is sent while a pass runs; its answer is taken before the pass is over, or after."""
        work = self.scheduler.next_work() or Work([])
        operations = self.scheduler.operations(self.tables, self.now, work, spare_tokens=spare_tokens)
        response = pb.StepResponse(results=[answer(each) for each in operations])
        response.events.events.extend(events)
        if not answer_first:
            self.compute(work)
        self.tables.apply(operations, response)
        self.changed = self.scheduler.take(operations, response)
        if answer_first:
            self.compute(work)
        return operations

    def compute(self, work: Work, token: int = 7) -> None:
        for stream, token_count in zip(work.streams, work.token_counts, strict=True):
            stream.computed += token_count
            if not stream.tokens_pending:
                stream.add(Choice(token, 1.0))
                if stream.is_done:
                    self.scheduler.end(stream)

    def run(self, token: int = 7) -> tuple[list[Stream], int]:
        """Computes what there is to compute; the model always says `token`.

        Returns the streams, and the tokens of the chunk, which is the last one's; 1 if there is none.
        """
        work = self.scheduler.next_work()
        if work is None:
            return [], 0
        self.compute(work, token)
        return work.streams, work.token_counts[-1]

    def run_to_decode(self, answer: Answer, streams: int) -> None:
        """Until so many streams have their first token."""
        while sum(bool(each.margins) for each in self.scheduler.streams) < streams:
            self.step(answer)
            self.run()


def granted(operation: pb.Operation, cached: int = 0) -> pb.Result:
    """A store with endless room, which caches `cached` tokens of every new sequence."""
    match operation.WhichOneof("kind"):
        case "allocate":
            known, blocks = operation.allocate.known_blocks, operation.allocate.token_count // BLOCK_TOKENS
            response = pb.AllocateResponse(
                outcome=pb.OUTCOME_OK,
                state=pb.Sequence.RESIDENT,
                first_block=known,
                block_table=range(known, blocks),
                cached_tokens=cached,
                gpu_tokens=cached,
            )
            return pb.Result(allocate=response)
        case "grow":
            return pb.Result(grow=grown(operation.grow, set(), 0))
        case "swap":
            if operation.swap.direction == pb.SwapRequest.IN:
                swap = pb.SwapResponse(outcome=pb.OUTCOME_OK, state=pb.Sequence.SWAPPING_IN, block_table=[1])
            else:
                swap = pb.SwapResponse(outcome=pb.OUTCOME_OK, state=pb.Sequence.SWAPPING_OUT)
            return pb.Result(swap=swap)
        case kind:
            return pb.Result(**{str(kind): getattr(pb.Result(), str(kind))})


def grown(request: pb.GrowRequest, kept: set[int], frames_short: int) -> pb.GrowResponse:
    """`kept`: those that get no frames."""
    response = pb.GrowResponse()
    columns = zip(request.sequences, request.token_counts, request.known_blocks, strict=True)
    for place, (sequence, token_count, known) in enumerate(columns):
        frames = [] if sequence in kept else range(known, token_count // BLOCK_TOKENS)
        response.frame_counts.append(len(frames))
        response.frames.extend(frames)
        if sequence in kept:
            other = response.others.add(place=place).result
            other.outcome, other.state = pb.OUTCOME_LATER, pb.Sequence.RESIDENT
            other.frames_short = frames_short
    return response


def refused(
    sequences: Iterable[int], frames_short: int, state: pb.Sequence.State.ValueType = pb.Sequence.RESIDENT
) -> Answer:
    """As `granted`, but these sequences get no frames."""
    kept = set(sequences)

    def answer(operation: pb.Operation) -> pb.Result:
        if operation.WhichOneof("kind") == "allocate" and operation.allocate.sequence in kept:
            response = pb.AllocateResponse(outcome=pb.OUTCOME_LATER, state=state, frames_short=frames_short)
            return pb.Result(allocate=response)
        if operation.WhichOneof("kind") == "grow":
            return pb.Result(grow=grown(operation.grow, kept, frames_short))
        return granted(operation)

    return answer


def moved(
    sequence: int, state: pb.Sequence.State.ValueType, table: Iterable[int] = (), valid: int = 0
) -> pb.Event:
    return pb.Event(
        revision=1,
        sequence_moved=pb.SequenceMoved(
            sequence=sequence, state=state, block_table=list(table), valid_tokens=valid
        ),
    )


def pressed(pressure: pb.Pressure.ValueType, tier: pb.Tier.ValueType = pb.TIER_GPU) -> pb.Event:
    return pb.Event(revision=1, pressure_changed=pb.PressureChanged(tier=tier, pressure=pressure))


def kinds(operations: Iterable[pb.Operation]) -> list[str]:
    names = []
    for operation in operations:
        kind = str(operation.WhichOneof("kind"))
        if kind == "swap":
            kind = "swap_in" if operation.swap.direction == pb.SwapRequest.IN else "swap_out"
        names.append(kind)
    return names
