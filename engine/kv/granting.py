"""A step's operations, answered out of frames of one's own: nothing is shared, found again or moved.

Applied in the order of the contract's phases, but for two things. Frames come free at once, without a
fence: all work of an engine runs in the order of its steps, so what is written into a frame comes behind
whatever its last holder has read. And a fork is a copy: each child gets frames of its own, with what stands
in the parent's; where the parent ends with the same step, one child takes its frames over.
Tests: tests/engine/kv/test_granting.py.
"""

from collections.abc import Sequence

from engine.kv.frames import FrameTables
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["answer_step"]


def answer_step(
    frames: FrameTables, operations: Sequence[pb.Operation], block_tokens: int
) -> pb.StepResponse:
    """Answers all of them; want of room is the outcome LATER, or NEVER where the pool is too small.

    Raises ValueError at a swap: an engine over such frames preempts nobody.
    """
    response = pb.StepResponse()
    results = [response.results.add() for _ in operations]
    places: dict[str, list[int]] = {}
    for place, operation in enumerate(operations):
        places.setdefault(operation.WhichOneof("kind") or "", []).append(place)
    if "swap" in places:
        raise ValueError("memory of the engine's own has nowhere to swap to")
    ended = [each for place in places.get("free", ()) for each in operations[place].free.sequences]
    parents = {operations[place].fork.parent for place in places.get("fork", ())}
    for sequence in ended:
        if sequence not in parents:
            frames.free(sequence)
    for place in places.get("fork", ()):
        _fork(frames, operations[place].fork, results[place].fork, response, set(ended))
    for sequence in parents.intersection(ended):
        frames.free(sequence)
    for place in places.get("grow", ()):
        _grow(frames, operations[place].grow, results[place].grow, block_tokens)
    for place in places.get("allocate", ()):
        request = operations[place].allocate
        _allocate(frames, request.sequence, request.token_count, block_tokens, results[place].allocate)
    for result, operation in zip(results, operations, strict=True):
        # What has nothing to say is answered too.
        kind = operation.WhichOneof("kind")
        if kind:
            getattr(result, kind).SetInParent()
    return response


def _allocate(
    frames: FrameTables, sequence: int, token_count: int, block_tokens: int, answer: pb.AllocateResponse
) -> None:
    known, wanted = len(frames.table(sequence)), -(-token_count // block_tokens)
    if wanted > frames.frame_count:
        answer.outcome = pb.OUTCOME_NEVER
        return
    free = frames.free_count
    answer.state = pb.Sequence.RESIDENT
    if frames.grow(sequence, wanted):
        answer.outcome = pb.OUTCOME_OK
        answer.first_block = known
        answer.block_table.extend(frames.table(sequence)[known:])
        return
    answer.outcome = pb.OUTCOME_LATER
    answer.frames_short = wanted - known - free
    if not known:
        answer.state = pb.Sequence.DROPPED


def _grow(frames: FrameTables, request: pb.GrowRequest, answer: pb.GrowResponse, block_tokens: int) -> None:
    for place, (sequence, token_count) in enumerate(
        zip(request.sequences, request.token_counts, strict=True)
    ):
        result = pb.AllocateResponse()
        _allocate(frames, sequence, token_count, block_tokens, result)
        answer.frame_counts.append(len(result.block_table))
        answer.frames.extend(result.block_table)
        if result.outcome != pb.OUTCOME_OK:
            answer.others.append(pb.GrownOtherwise(place=place, result=result))


def _fork(
    frames: FrameTables,
    request: pb.ForkRequest,
    answer: pb.ForkResponse,
    response: pb.StepResponse,
    ended: set[int],
) -> None:
    """All children, or none: then they come in by themselves, and compute what the parent has computed."""
    parent, children = request.parent, list(request.children)
    table = list(frames.table(parent))
    heir = children[0] if parent in ended else 0
    copied = [child for child in children if child != heir]
    if len(copied) * len(table) > frames.free_count:
        answer.outcome = pb.OUTCOME_LATER
        return
    answer.outcome = pb.OUTCOME_OK
    if heir:
        frames.hand_over(parent, heir)
    for child in copied:
        frames.grow(child, len(table))
        for source, target in zip(table, frames.table(child), strict=True):
            response.copies.add(source=source, target=target)
    for child in copied:
        # The tables take a fork for a share of the parent's frames; this tells where the child's own are.
        moved = response.events.events.add().sequence_moved
        moved.sequence, moved.state = child, pb.Sequence.RESIDENT
        moved.block_table.extend(frames.table(child))
