"""A Grow as the Allocates that it stands for, and their results as its own."""

from collections.abc import Sequence as Many

from kvstore.core.errors import CheckFailed
from kvstore.core.operations import Allocate, AllocateResult, Grow, GrownOtherwise, GrowResult, Result
from kvstore.core.types import OK, RESIDENT, Frame

__all__ = ["allocates_of", "as_allocates", "as_columns"]


def allocates_of(operation: Grow) -> list[Allocate]:
    """The same, one by one."""
    columns = zip(operation.sequences, operation.token_counts, operation.known_blocks, strict=True)
    return [
        Allocate(sequence=sequence, token_count=tokens, known_blocks=known)
        for sequence, tokens, known in columns
    ]


def as_allocates(operation: Grow, result: GrowResult) -> list[tuple[Allocate, AllocateResult]]:
    """What was asked and answered, one by one; how much was cached is told of `others` alone."""
    others = {other.place: other.result for other in result.others}
    told: list[tuple[Allocate, AllocateResult]] = []
    begin = 0
    for place, (single, count) in enumerate(zip(allocates_of(operation), result.frame_counts, strict=True)):
        grown = AllocateResult(
            outcome=OK,
            state=RESIDENT,
            block_table=result.frames[begin : begin + count],
            first_block=single.known_blocks,
        )
        told.append((single, others.get(place, grown)))
        begin += count
    return told


def as_columns(operation: Grow, results: Many[Result]) -> GrowResult:
    """The results of its Allocates as the one of a Grow."""
    counts: list[int] = []
    frames: list[Frame] = []
    others: list[GrownOtherwise] = []
    for place, (known, result) in enumerate(zip(operation.known_blocks, results, strict=True)):
        if not isinstance(result, AllocateResult):
            raise CheckFailed(f"an Allocate was answered with {type(result).__name__}")
        if result.outcome is OK and result.state is RESIDENT and 0 < known == result.first_block:
            counts.append(len(result.block_table))
            frames += result.block_table
        else:
            counts.append(0)
            others.append(GrownOtherwise(place=place, result=result))
    return GrowResult(frame_counts=tuple(counts), frames=tuple(frames), others=tuple(others))
