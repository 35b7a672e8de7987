"""Sequences that only grow: most operations of most steps.

They need blocks at their end and nothing else, so they are served all together, without a plan for each.
What is new or not resident goes the general way, `granting.py`, and all do where one grows otherwise
(forked, asked for twice) or finds no room: it would do the same with these.
"""

from msgspec import Struct

from kvstore.core.admission import Admission
from kvstore.core.blocks import NO_ROWS
from kvstore.core.config import StoreConfig
from kvstore.core.effects import AllocateResult, Result
from kvstore.core.engines import Engine
from kvstore.core.events import Allocate
from kvstore.core.leaving import Leaving
from kvstore.core.memory import Memory
from kvstore.core.phases import Placed
from kvstore.core.sequences import Sequence
from kvstore.core.types import GPU, OK, RESIDENT, RUNNING, Frame, SequenceId

__all__ = ["Growing"]


class _Growth(Struct):
    index: int
    operation: Allocate
    sequence: Sequence
    fresh: int


class Growing:
    def __init__(self, config: StoreConfig, memory: Memory, admission: Admission, leaving: Leaving) -> None:
        self._config = config
        self._memory = memory
        self._admission = admission
        self._leaving = leaving

    def grow(
        self, engine: Engine, allocates: Placed[Allocate], results: dict[int, Result]
    ) -> Placed[Allocate]:
        """Serves what only grows, if none of these waits and all find room; returns the rest."""
        if not allocates or self._admission.growth_waits:
            return allocates
        growths, rest = self._sort(engine, allocates)
        fresh = sum([growth.fresh for growth in growths])
        # A prompt of the same step may hit what growth would evict: then all are granted together.
        if rest and fresh > self._memory.pools[GPU].free_count:
            return allocates
        rows = self._memory.grant(NO_ROWS, fresh)
        if rows is None:
            return allocates
        frames = self._memory.blocks.frame[GPU][rows].tolist()
        self._give(growths, rows.tolist(), frames, results)
        return rest

    def _sort(self, engine: Engine, allocates: Placed[Allocate]) -> tuple[list[_Growth], Placed[Allocate]]:
        size, most = self._config.block_tokens, self._config.gpu_frames
        growths: list[_Growth] = []
        rest: Placed[Allocate] = []
        seen: set[SequenceId] = set()
        for placed in allocates:
            index, operation = placed
            id = operation.sequence
            sequence = engine.sequences.get(id)
            blocks = -(-operation.token_count // size)
            if sequence is None or sequence.state is not RESIDENT:
                rest.append(placed)
                continue
            fresh = blocks - len(sequence.rows)
            # An engine that does not know all of the blocks that are there has to be told of these.
            known = operation.known_blocks >= len(sequence.rows)
            if sequence.forked or not known or blocks > most or id in seen:
                return [], allocates
            growths.append(_Growth(index, operation, sequence, fresh if fresh > 0 else 0))
            seen.add(id)
        return growths, rest

    def _give(
        self, growths: list[_Growth], rows: list[int], frames: list[Frame], results: dict[int, Result]
    ) -> None:
        idle, begin = self._leaving.idle, 0
        for growth in growths:
            operation, sequence, end = growth.operation, growth.sequence, begin + growth.fresh
            known, table = operation.known_blocks, sequence.rows
            told = tuple(frames[begin + known - len(table) : end])
            table.extend(rows[begin:end])
            begin = end
            sequence.activity = RUNNING
            if idle:
                idle.pop(sequence, None)
            if operation.token_count > sequence.token_count:
                sequence.token_count = operation.token_count
            results[growth.index] = AllocateResult(
                outcome=OK,
                state=RESIDENT,
                cached_tokens=sum(sequence.found_tokens),
                block_table=told,
                first_block=known,
                tier_tokens=sequence.found_tokens,
            )
