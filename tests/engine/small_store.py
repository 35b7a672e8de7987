"""The service's side of the talk with a pool of few frames: it counts frames, and moves in a step's time."""

from kvstore.v1 import kvstore_pb2 as pb
from tests.engine.talk import BLOCK_TOKENS, Talk, moved

__all__ = ["SmallStore"]


class SmallStore:
    """What leaves gives its frames back with the step after; what comes back is there with the step after.

    Nothing is cached. Who finds no room is told so, and holds no place: a queue of tickets is the real one's.
    """

    def __init__(self, frames: int) -> None:
        self.frames = self.free = frames
        self.held: dict[int, int] = {}
        self.away: dict[int, tuple[int, int]] = {}
        self.swapped_blocks = 0
        self._leaving = self._passing = 0
        self._events: list[pb.Event] = []

    def step(self, talk: Talk, *events: pb.Event) -> list[pb.Operation]:
        told, self._events = self._events, []
        self.free += self._leaving + self._passing
        self._leaving = self._passing = 0
        operations = talk.step(self.answer, [*told, *events])
        assert 0 <= self.free == self.frames - sum(self.held.values()) - self._leaving
        return operations

    def step_ahead(self, talk: Talk, *, answer_first: bool, spare_tokens: int = 0) -> list[pb.Operation]:
        told, self._events = self._events, []
        # The pass that may touch what left with the step before is not over: it stays for one step more.
        self.free += self._passing
        self._passing, self._leaving = self._leaving, 0
        return talk.step_ahead(self.answer, told, answer_first=answer_first, spare_tokens=spare_tokens)

    def answer(self, operation: pb.Operation) -> pb.Result:
        match operation.WhichOneof("kind"):
            case "allocate":
                return pb.Result(allocate=self._allocate(operation.allocate))
            case "grow":
                return pb.Result(grow=self._grow(operation.grow))
            case "swap" if operation.swap.direction == pb.SwapRequest.OUT:
                return pb.Result(swap=self._swap_out(operation.swap))
            case "swap":
                return pb.Result(swap=self._swap_in(operation.swap))
            case "free":
                for sequence in operation.free.sequences:
                    self.free += self.held.pop(sequence, 0)
                    self.away.pop(sequence, None)
                return pb.Result(free=pb.FreeResponse())
            case kind:
                return pb.Result(**{str(kind): getattr(pb.Result(), str(kind))})

    def _take(self, sequence: int, token_count: int) -> pb.AllocateResponse:
        known = self.held.get(sequence, 0)
        wanted = -(-token_count // BLOCK_TOKENS)
        if wanted > self.frames:
            return pb.AllocateResponse(outcome=pb.OUTCOME_NEVER)
        if short := max(wanted - known - self.free, 0):
            state = pb.Sequence.RESIDENT if known else pb.Sequence.DROPPED
            # What is leaving will be there with the next step.
            frames_short = max(short - self._leaving - self._passing, 0)
            return pb.AllocateResponse(outcome=pb.OUTCOME_LATER, state=state, frames_short=frames_short)
        self.free -= wanted - known
        self.held[sequence] = wanted
        return pb.AllocateResponse(
            outcome=pb.OUTCOME_OK,
            state=pb.Sequence.RESIDENT,
            first_block=known,
            block_table=range(known, wanted),
        )

    def _allocate(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        return self._take(request.sequence, request.token_count)

    def _grow(self, request: pb.GrowRequest) -> pb.GrowResponse:
        response = pb.GrowResponse()
        for place, pair in enumerate(zip(request.sequences, request.token_counts, strict=True)):
            result = self._take(*pair)
            response.frame_counts.append(len(result.block_table))
            response.frames.extend(result.block_table)
            if result.outcome != pb.OUTCOME_OK:
                response.others.append(pb.GrownOtherwise(place=place, result=result))
        return response

    def _swap_out(self, request: pb.SwapRequest) -> pb.SwapResponse:
        blocks = self.held.pop(request.sequence)
        self.away[request.sequence] = blocks, request.filled_tokens
        self.swapped_blocks += blocks
        self._leaving += blocks
        self._events.append(moved(request.sequence, pb.Sequence.SWAPPED))
        return pb.SwapResponse(outcome=pb.OUTCOME_OK, state=pb.Sequence.SWAPPING_OUT)

    def _swap_in(self, request: pb.SwapRequest) -> pb.SwapResponse:
        blocks, filled = self.away[request.sequence]
        if blocks > self.free:
            frames_short = max(blocks - self.free - self._leaving - self._passing, 0)
            return pb.SwapResponse(
                outcome=pb.OUTCOME_LATER, state=pb.Sequence.SWAPPED, frames_short=frames_short
            )
        del self.away[request.sequence]
        self.free -= blocks
        self.held[request.sequence] = blocks
        self.swapped_blocks += blocks
        self._events.append(moved(request.sequence, pb.Sequence.RESIDENT, range(blocks), filled))
        return pb.SwapResponse(
            outcome=pb.OUTCOME_OK,
            state=pb.Sequence.SWAPPING_IN,
            block_table=range(blocks),
            valid_tokens=filled,
        )
