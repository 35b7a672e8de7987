"""A trace made ready to be played: blocks by numbers of their own, turns tied to conversations.

The whole trace is held, some eight bytes a block that a prompt names: who comes next in a conversation, and
what the optimum would keep, can only be said of a trace that has an end.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from operator import itemgetter
from zlib import crc32

from msgspec import Struct

from kvstore.core.errors import TraceInvalid
from kvstore.core.types import BlockKey, blocks_for_tokens
from kvstore.planner.requests import Request, Trace
from kvstore.planner.sessions import NOBODY, infer_previous, named_previous

__all__ = ["Turn", "Workload", "load_workload"]

# The parent of the first block of a chain.
NO_BLOCK = -1


class Turn(Struct, eq=False, gc=False):
    """A request as it is played."""

    # Seconds since the trace's first request.
    time: float
    input_tokens: int
    output_tokens: int
    # Numbers of the blocks that the prompt fills, and of those that are full when the answer ends, behind
    # them.
    prompt: tuple[int, ...]
    session: str
    answer: tuple[int, ...] = ()
    # Its place in its conversation, from 0, and who comes after it there.
    place: int = 0
    next: "Turn | None" = None

    def blocks(self, block_tokens: int) -> int:
        """That prompt and answer take together."""
        return blocks_for_tokens(self.input_tokens + self.output_tokens, block_tokens)

    def usable_blocks(self, block_tokens: int) -> int:
        """Of the prompt's blocks those that may be found: at least one token is always computed."""
        return (self.input_tokens - 1) // block_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Turns in the order of their times; `keys` by numbers of blocks."""

    name: str
    block_tokens: int
    turns: list[Turn]
    keys: list[BlockKey]
    # Whether the trace says who talks to whom, or prompts were compared.
    sessions_named: bool

    def keys_of(self, blocks: tuple[int, ...]) -> tuple[BlockKey, ...]:
        if len(blocks) > 1:
            keys: tuple[BlockKey, ...] = itemgetter(*blocks)(self.keys)
            return keys
        return tuple([self.keys[block] for block in blocks])


def load_workload(trace: Trace, share: float = 1.0) -> Workload:
    """Reads a trace through. With `share` below 1 only so many of its conversations are taken, each whole."""
    requests = sorted(trace.requests(), key=lambda request: request.time)
    if not requests:
        raise TraceInvalid(
            "no requests", field="trace", value=trace.name, remedy="name a trace that has some"
        )
    numbers, size = _Numbers(), trace.block_tokens
    prompts = [numbers.of(request.block_ids[: request.full_blocks(size)]) for request in requests]
    named = any(request.session for request in requests)
    previous = named_previous([request.session for request in requests]) if named else infer_previous(prompts)
    turns = _tie(requests, prompts, previous, requests[0].time)
    for turn, request in zip(turns, requests, strict=True):
        turn.answer = _answer(turn, request, size, numbers)
    if share < 1:
        turns = [turn for turn in turns if crc32(turn.session.encode()) < share * 2**32]
    return Workload(
        name=trace.name, block_tokens=size, turns=turns, keys=numbers.keys(), sessions_named=named
    )


def _tie(
    requests: list[Request], prompts: list[tuple[int, ...]], previous: Iterable[int], start: float
) -> list[Turn]:
    """Each turn to the one before it in its conversation. A conversation has the name of its first turn."""
    turns: list[Turn] = []
    for number, (request, prompt, before) in enumerate(zip(requests, prompts, previous, strict=True)):
        turn = Turn(
            time=request.time - start,
            input_tokens=request.input_tokens,
            output_tokens=request.output_tokens,
            prompt=prompt,
            session=request.session or f"conversation {number}",
        )
        if before != NOBODY:
            turn.place, turn.session = turns[before].place + 1, turns[before].session
            turns[before].next = turn
        turns.append(turn)
    return turns


def _answer(turn: Turn, request: Request, size: int, numbers: "_Numbers") -> tuple[int, ...]:
    """The blocks that the answer fills: as the trace says, or as the next prompt has them if it goes on from
    the whole answer. Else they are nobody's: they take room as in life, and are never asked for again."""
    full, end = request.full_blocks(size), request.answered_blocks(size)
    if request.answer_ids:
        return numbers.of(request.answer_ids, turn.prompt[-1] if turn.prompt else NO_BLOCK)
    then = turn.next
    goes_on = then is not None and then.input_tokens >= request.input_tokens + request.output_tokens
    if then is not None and goes_on and then.prompt[:full] == turn.prompt:
        return then.prompt[full:end]
    return numbers.new(end - full)


class _Numbers:
    """Of blocks, by what they hang on and the trace's id: so an id that names a block's tokens alone does as
    well as one that names all up to its end."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], int] = {}
        self._next = 0

    def of(self, ids: Iterable[int], parent: int = NO_BLOCK) -> tuple[int, ...]:
        known, numbers = self._known, []
        for each in ids:
            parent = known.setdefault((parent, each), self._next)
            if parent == self._next:
                self._next += 1
            numbers.append(parent)
        return tuple(numbers)

    def new(self, count: int) -> tuple[int, ...]:
        """Blocks of which the trace knows nothing."""
        begin, self._next = self._next, self._next + count
        return tuple(range(begin, self._next))

    def keys(self) -> list[BlockKey]:
        """None is nothing but zeros, and any eight bytes at the beginning tell them apart."""
        return [BlockKey((1 + number).to_bytes(32, "little")) for number in range(self._next)]
