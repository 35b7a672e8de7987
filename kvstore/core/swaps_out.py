"""Sequences on their way out: room below is taken and claimed at once, or the sequence is dropped; its bytes
are copied when the work that wrote them has completed; then it gives its GPU frames up.
"""

from collections.abc import Callable

import numpy as np

from kvstore.core.blocks import NO_FRAME, Blocks, empty_table
from kvstore.core.config import StoreConfig
from kvstore.core.frames import Purpose, make_room
from kvstore.core.links import Links
from kvstore.core.memory import Memory
from kvstore.core.sequences import Move, Sequence
from kvstore.core.types import COPY, CPU, DISK, SWAPPING_OUT, StepNumber, blocks_for_tokens
from kvstore.core.waiting import Waiting

__all__ = ["SwapsOut", "unclaim"]

WHY_ROOM = "a sequence is swapped out"


class SwapsOut:
    """From the claim to the last copy, or back."""

    def __init__(
        self,
        config: StoreConfig,
        memory: Memory,
        links: Links,
        waiting: Waiting,
        moved: Callable[[Sequence], None],
    ) -> None:
        self._config = config
        self._memory = memory
        self._links = links
        self._waiting = waiting
        self._moved = moved
        # Taken on since the start.
        self.count = 0

    def start(self, sequence: Sequence, filled_tokens: int, fence: StepNumber) -> bool:
        """Claims room below for the filled blocks. False, and nothing changed, where there is none."""
        blocks, memory = self._memory.blocks, self._memory
        kept = sequence.rows[: blocks_for_tokens(filled_tokens, self._config.block_tokens)]
        if not kept or not self._config.cpu_frames:
            return False
        rows = np.array(kept, np.intp)
        below = blocks.valid[CPU][rows] | blocks.valid[DISK][rows]
        lacking = rows[~below & (blocks.frame[CPU][rows] == NO_FRAME)]
        blocks.claim(rows)
        spare = self._config.cpu_frames_reserved
        purpose = Purpose(WHY_ROOM, (sequence,))
        if not make_room(memory, CPU, lacking.size, lambda: purpose, spare, sequence.domain, in_share=True):
            blocks.unclaim(rows)
            return False
        memory.replicas.add(CPU, lacking)
        blocks.give_up(np.array(sequence.rows, np.intp))
        sequence.move(Move.OUT)
        self.count += 1
        sequence.claimed = kept
        sequence.filled_tokens = filled_tokens
        sequence.out_fence = fence
        sequence.begun = False
        self._waiting.wait(sequence, CPU, rows[~below].tolist())
        return True

    def begin(self, sequence: Sequence, fence: StepNumber) -> None:
        """The work that wrote the sequence's blocks has completed: they may be copied."""
        waited_for = sequence.state is SWAPPING_OUT and sequence.out_fence == fence
        if sequence.freed or sequence.begun or not waited_for:
            return
        sequence.begun = True
        blocks = self._memory.blocks
        rows = np.array(sequence.claimed, np.intp)
        blocks.offered[rows] = True
        self._links.ask(COPY, rows[~blocks.valid[CPU][rows]].tolist())
        if not sequence.waits:
            self.finish(sequence)
            self._moved(sequence)

    def finish(self, sequence: Sequence) -> None:
        """All copies have ended: it gives its GPU frames up. If one has failed, it keeps nothing."""
        rows = np.array(sequence.rows, np.intp)
        failed = sequence.first_failed is not None
        sequence.move(Move.COPY_FAILED if failed else Move.COPIED)
        self._memory.blocks.leave_limbo(rows)
        if failed:
            unclaim(self._memory.blocks, sequence)
            sequence.committed = sequence.filled_tokens = 0
        sequence.rows = sequence.claimed[:]
        sequence.first_failed = None
        self._memory.collect(rows)

    def cancel(self, sequence: Sequence) -> None:
        """Back in. At once, unless a copy of a block that the engine may write to still runs."""
        blocks = self._memory.blocks
        rows = np.array(sequence.rows, np.intp)
        # One that is there already is read by a write to disk, at whose end nobody here is served.
        copying = (blocks.pins[CPU][rows] > 0) & ~blocks.valid[CPU][rows] & ~blocks.indexed[rows]
        self._waiting.stop(sequence)
        # It may be written again: copies still queued must not run, unless another waits for them.
        blocks.offered[rows[(blocks.claims[rows] == 1) & ~copying]] = False
        if copying.any():
            sequence.move(Move.CANCEL_LATE)
            sequence.cancelled = True
            self._waiting.wait(sequence, CPU, rows[copying].tolist())
            return
        sequence.move(Move.CANCEL)
        self.take_back(sequence)

    def take_back(self, sequence: Sequence) -> None:
        """It is as if it had never been on its way."""
        blocks, rows = self._memory.blocks, np.array(sequence.rows, np.intp)
        blocks.take_back(rows)
        unclaim(self._memory.blocks, sequence)
        sequence.first_failed = None
        self._memory.collect(rows)


def unclaim(blocks: Blocks, sequence: Sequence) -> None:
    """The sequence needs its copies below no more."""
    blocks.unclaim(np.array(sequence.claimed, np.intp))
    sequence.claimed = empty_table()
