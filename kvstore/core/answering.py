"""From what was asked and granted to results: block tables as frames, one look for a whole step."""

from array import array
from collections.abc import Sequence as Many

from kvstore.core.answers import FrameCopy
from kvstore.core.blocks import NO_TABLE, concat
from kvstore.core.granting import Asked
from kvstore.core.memory import Memory
from kvstore.core.operations import AllocateResult, SwapResult
from kvstore.core.types import DROPPED, GPU, OK, Frame

__all__ = ["Answering"]


class Answering:
    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def frames(self, tables: Many["array[int]"]) -> list[tuple[Frame, ...]]:
        """GPU frames of many tables: one look for all."""
        frames = self._memory.blocks.frame[GPU][concat(tables)].tolist()
        split: list[tuple[Frame, ...]] = []
        begin = 0
        for table in tables:
            split.append(tuple(frames[begin : begin + len(table)]))
            begin += len(table)
        return split

    def answer_allocate(self, asked: list[Asked]) -> list[AllocateResult]:
        tables = self.frames([self._told(each) for each in asked])
        return [self._allocate_result(each, table) for each, table in zip(asked, tables, strict=True)]

    def _told(self, asked: Asked) -> "array[int]":
        """The part of the table that the engine does not know yet."""
        if asked.sequence is None or asked.outcome is not OK:
            return NO_TABLE
        return asked.sequence.rows[asked.known_blocks :]

    def _allocate_result(self, asked: Asked, table: tuple[Frame, ...]) -> AllocateResult:
        sequence = asked.sequence
        if sequence is None or asked.outcome is not OK:
            return AllocateResult(
                outcome=asked.outcome,
                state=sequence.state if sequence else DROPPED,
                frames_short=asked.frames_short,
            )
        return AllocateResult(
            outcome=OK,
            state=sequence.state,
            cached_tokens=sum(sequence.found_tokens),
            block_table=table,
            first_block=asked.known_blocks,
            tier_tokens=sequence.found_tokens,
        )

    def answer_in(self, asked: list[Asked]) -> list[SwapResult]:
        tables = self.frames([self._told(each) for each in asked])
        return [self._swap_result(each, table) for each, table in zip(asked, tables, strict=True)]

    def _swap_result(self, asked: Asked, table: tuple[Frame, ...]) -> SwapResult:
        sequence = asked.sequence
        if sequence is None:
            return SwapResult(outcome=asked.outcome, state=DROPPED)
        return SwapResult(
            outcome=asked.outcome,
            state=sequence.state,
            block_table=table,
            valid_tokens=sequence.token_count if asked.runs else sequence.filled_tokens,
            frames_short=asked.frames_short,
        )

    def frame_copies(self, blocks: "tuple[array[int], array[int]]") -> tuple[FrameCopy, ...]:
        if not blocks[0]:
            return ()
        sources, targets = self.frames(blocks)
        return tuple(FrameCopy(source=s, target=t) for s, t in zip(sources, targets, strict=True))
