"""Copy-on-write of part-filled last blocks.

A fork shares all blocks. Full ones are never written again; the part-filled last one is, by
whoever goes on first. So before its next write each sharer but the last gets a frame of its
own and the engine is told to copy. Sharers are resident sequences and swapped ones: a
swapped one's copy below must stay what it was.
"""

from array import array
from collections.abc import Iterable

import numpy as np

from kvstore.core.blocks import NO_TABLE, as_table
from kvstore.core.engines import Engine, Release
from kvstore.core.memory import Memory
from kvstore.core.sequences import Sequence
from kvstore.core.types import GPU, RESIDENT, Retention, StepNumber

__all__ = ["Tails"]


class Tails:
    """The tails that one step has to do with."""

    def __init__(self, memory: Memory, block_tokens: int) -> None:
        self._memory = memory
        self._block_tokens = block_tokens
        self._sharers: dict[int, int] = {}
        self._sources: list[int] = []
        self._targets: list[int] = []
        # New blocks that turned out not to be needed.
        self._spare: list[int] = []

    def look_at(self, sequences: Iterable[Sequence | None]) -> None:
        """Counts who shares the tails of these sequences: one look for all of them."""
        forked = [each for each in sequences if each and each.forked and each.state is RESIDENT]
        if not forked:
            return
        blocks, rows = self._memory.blocks, np.array([each.rows[-1] for each in forked], np.intp)
        # A copy that runs reads the tail as well, be the one it was for still there or not.
        copied = blocks.pins[GPU][rows] > 0
        held = blocks.refs[rows] - blocks.limbo[rows]
        counts = (held + blocks.claims[rows] + copied).tolist()
        for sequence, count in zip(forked, counts, strict=True):
            self._sharers[sequence.rows[-1]] = count
            sequence.forked = count > 1 and sequence.token_count % self._block_tokens != 0

    def split(self, sequence: Sequence, fresh: int) -> bool:
        """Gives the sequence a tail of its own, unless the others have all got theirs meanwhile."""
        tail = sequence.rows[-1]
        sequence.forked = False
        if self._sharers[tail] == 1:
            self._spare.append(fresh)
            return False
        self._sharers[tail] -= 1
        self._sources.append(tail)
        self._targets.append(fresh)
        # A part-filled block is not committed, so no fence looks at this place of the table.
        sequence.rows[-1] = fresh
        return True

    def end(self, engine: Engine, step: StepNumber) -> tuple["array[int]", "array[int]"]:
        """Blocks to copy from and to. The engine copies in this step, so the sources stay until then."""
        blocks = self._memory.blocks
        if self._spare:
            spare = np.array(self._spare, np.intp)
            blocks.release(spare)
            self._memory.collect(spare)
        if not self._sources:
            return NO_TABLE, NO_TABLE
        rows = np.array(self._sources, np.intp)
        blocks.give_up(rows)
        engine.fences.append(Release(fence=step, rows=rows, retention=Retention.CACHE))
        return as_table(self._sources), as_table(self._targets)
