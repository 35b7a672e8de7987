"""Sequences that only grow: most of what most steps ask for.

They need blocks at their end and nothing else, so they are served all together, without a plan for each:
as the columns of a Grow, or as Allocates that could have been one. Where one of them is anything else
(forked, not resident, named twice) or they find no room, they go the general way, `granting.py`, each as
an Allocate: it would do the same with these.
"""

from collections.abc import Sequence as Many

from kvstore.core.admission import WHY_ROOM, Admission, Precedence
from kvstore.core.blocks import NO_ROWS
from kvstore.core.config import StoreConfig
from kvstore.core.engines import Engine
from kvstore.core.frames import Purpose, grant_frames
from kvstore.core.leaving import Leaving
from kvstore.core.memory import Memory
from kvstore.core.operations import Allocate, AllocateResult, Grow, GrowResult, Result
from kvstore.core.phases import Placed
from kvstore.core.sequences import Sequence
from kvstore.core.types import GPU, OK, RESIDENT, RUNNING, DomainId, Frame, SequenceId

__all__ = ["Growing"]


class Growing:
    def __init__(self, config: StoreConfig, memory: Memory, admission: Admission, leaving: Leaving) -> None:
        self._config = config
        self._memory = memory
        self._admission = admission
        self._leaving = leaving

    def grow(self, engine: Engine, operation: Grow, *, alone: bool) -> GrowResult | None:
        """Serves all of it, or none: None. `alone`: no prompt comes in this step."""
        columns = operation.sequences, operation.token_counts, operation.known_blocks
        grown = self._serve(engine, *columns, alone=alone)
        if grown is None:
            return None
        counts, frames = grown
        return GrowResult(frame_counts=tuple(counts), frames=tuple(frames))

    def grow_allocates(
        self, engine: Engine, allocates: Placed[Allocate], results: dict[int, Result]
    ) -> Placed[Allocate]:
        """Serves those of resident sequences, all or none; returns the rest."""
        growing: Placed[Allocate] = []
        rest: Placed[Allocate] = []
        for placed in allocates:
            sequence = engine.sequences.get(placed[1].sequence)
            (growing if sequence and sequence.state is RESIDENT else rest).append(placed)
        operations = [operation for _, operation in growing]
        ids = [operation.sequence for operation in operations]
        known = [operation.known_blocks for operation in operations]
        tokens = [operation.token_count for operation in operations]
        grown = self._serve(engine, ids, tokens, known, alone=not rest) if growing else None
        if grown is None:
            return allocates
        (counts, frames), begin = grown, 0
        for (index, operation), count in zip(growing, counts, strict=True):
            found = engine.sequences[operation.sequence].found_tokens
            results[index] = AllocateResult(
                outcome=OK,
                state=RESIDENT,
                cached_tokens=sum(found),
                block_table=tuple(frames[begin : begin + count]),
                first_block=operation.known_blocks,
                tier_tokens=found,
            )
            begin += count
        return rest

    def _serve(
        self, engine: Engine, ids: Many[SequenceId], tokens: Many[int], known: Many[int], *, alone: bool
    ) -> tuple[list[int], list[Frame]] | None:
        """How many frames each is told, and which."""
        if self._admission.growth_waits or len(set(ids)) < len(ids):
            return None
        sequences: list[Sequence] = []
        needed: list[int] = []
        size, most = self._config.block_tokens, self._config.gpu_frames
        for id, token_count, known_blocks in zip(ids, tokens, known, strict=True):
            sequence, blocks = engine.sequences.get(id), -(-token_count // size)
            if sequence is None or sequence.state is not RESIDENT or sequence.forked or blocks > most:
                return None
            held = len(sequence.rows)
            # An engine that does not know all of the blocks that are there has to be told of these.
            if known_blocks < held:
                return None
            sequences.append(sequence)
            needed.append(blocks - held if blocks > held else 0)
        fresh = sum(needed)
        # A prompt may hit what growth would evict: then all are granted together.
        if not alone and fresh > self._memory.pools[GPU].free_count:
            return None
        domains: list[tuple[DomainId, int]] = []
        if self._memory.shares.are_shared:
            domains = [(each.domain, count) for each, count in zip(sequences, needed, strict=True)]
        rows = grant_frames(
            self._memory, NO_ROWS, fresh, lambda: _purpose(sequences, needed), domains=domains
        )
        if rows is None:
            return None
        frames = self._memory.blocks.frame[GPU][rows].tolist()
        return self._give(sequences, needed, tokens, known, rows.tolist(), frames)

    def _give(
        self,
        sequences: list[Sequence],
        needed: list[int],
        tokens: Many[int],
        known: Many[int],
        rows: list[int],
        frames: list[Frame],
    ) -> tuple[list[int], list[Frame]]:
        counts: list[int] = []
        told: list[Frame] = []
        idle, begin = self._leaving.idle, 0
        for sequence, count, token_count, known_blocks in zip(sequences, needed, tokens, known, strict=True):
            end = begin + count
            new = frames[begin + known_blocks - len(sequence.rows) : end]
            told += new
            counts.append(len(new))
            sequence.rows.extend(rows[begin:end])
            begin = end
            sequence.activity = RUNNING
            if idle:
                idle.pop(sequence, None)
            if token_count > sequence.token_count:
                sequence.token_count = token_count
        return counts, told


def _purpose(sequences: list[Sequence], needed: list[int]) -> Purpose:
    growing = [sequence for sequence, count in zip(sequences, needed, strict=True) if count]
    return Purpose(WHY_ROOM[Precedence.GROW], growing, of_many=True)
