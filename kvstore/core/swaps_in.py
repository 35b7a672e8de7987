"""Sequences on their way in: they have GPU frames for all of their blocks (`admission.py`), which the links
fill. What does not come is computed again, into frames of its own.
"""

from array import array

import numpy as np
from msgspec import Struct

from kvstore.core.blocks import NO_ROWS, all_of, as_table, concat, empty_table
from kvstore.core.config import StoreConfig
from kvstore.core.frames import Purpose, grant_frames
from kvstore.core.links import Links
from kvstore.core.memory import Memory
from kvstore.core.sequences import Move, Sequence
from kvstore.core.swaps_out import SwapsOut, unclaim
from kvstore.core.types import GPU, LOAD, SWAPPED
from kvstore.core.waiting import Waiting

__all__ = ["Arrival", "SwapsIn"]

_NOTHING: frozenset[int] = frozenset()
WHY_ROOM = "blocks that could not be loaded are computed again"


class Arrival(Struct):
    """A sequence that has got its GPU frames: `held` blocks with content here or below, and `fresh`
    ones without any."""

    sequence: Sequence
    held: "array[int]"
    fresh: "array[int]"


class SwapsIn:
    """From the grant of frames to the last load."""

    def __init__(
        self, config: StoreConfig, memory: Memory, links: Links, waiting: Waiting, out: SwapsOut
    ) -> None:
        self._config = config
        self._memory = memory
        self._links = links
        self._waiting = waiting
        self._out = out
        # Taken on since the start.
        self.count = 0

    def start(self, arriving: list[Arrival]) -> None:
        """Sequences have their frames; what is not in them yet is asked for. One look for all."""
        if not arriving:
            return
        held = concat([each.held for each in arriving])
        filled = self._memory.blocks.valid[GPU][held]
        coming = _NOTHING if all_of(filled) else set(held[~filled].tolist())
        unclaimed: list[array[int]] = []
        for each in arriving:
            sequence = each.sequence
            sequence.rows = each.held + each.fresh
            sequence.held_blocks = len(each.held)
            self.count += sequence.state is SWAPPED
            sequence.first_failed = None
            waited_for = [row for row in each.held if row in coming] if coming else None
            if waited_for:
                sequence.move(Move.GRANTED_LOADING)
                self._waiting.wait(sequence, GPU, waited_for)
                self._links.ask(LOAD, waited_for)
            else:
                sequence.move(Move.GRANTED)
                if sequence.claimed:
                    unclaimed.append(sequence.claimed)
                    sequence.claimed = empty_table()
        if unclaimed:
            rows = concat(unclaimed)
            self._memory.blocks.unclaim(rows)
            self._memory.collect(rows)

    def finish(self, sequence: Sequence) -> None:
        """All loads have ended, or the copy that a cancelled swap-out had to wait for."""
        if sequence.cancelled:
            sequence.cancelled = False
            sequence.move(Move.LOADED)
            self._out.take_back(sequence)
        elif sequence.first_failed is None:
            sequence.move(Move.LOADED)
            rows = np.array(sequence.claimed, np.intp)
            unclaim(self._memory.blocks, sequence)
            self._memory.collect(rows)
        else:
            self._make_good(sequence, sequence.first_failed)
        sequence.first_failed = None

    def _make_good(self, sequence: Sequence, first: int) -> None:
        """Blocks from `first` on did not come: gives the sequence frames to compute them into.

        Blocks behind the lost one may be shared and committed, so they can't be written again in
        place. Nobody has read the frames yet, so they go without a fence.
        """
        memory, size = self._memory, self._config.block_tokens
        lost = np.array(sequence.rows[first : sequence.held_blocks], np.intp)
        claimed = np.array(sequence.claimed, np.intp)
        memory.blocks.release(lost)
        unclaim(self._memory.blocks, sequence)
        memory.collect(np.concatenate([lost, claimed]))
        fresh = grant_frames(
            memory,
            NO_ROWS,
            lost.size,
            lambda: Purpose(WHY_ROOM, (sequence,)),
            domains=[(sequence.domain, lost.size)],
        )
        sequence.committed = min(sequence.committed, first)
        sequence.filled_tokens = min(sequence.filled_tokens, first * size)
        sequence.cut_found(sequence.filled_tokens)
        if fresh is not None:
            sequence.move(Move.LOADED)
            rest = sequence.rows[sequence.held_blocks :]
            sequence.rows = sequence.rows[:first] + as_table(fresh) + rest
            return
        kept = np.array(sequence.rows[:first] + sequence.rows[sequence.held_blocks :], np.intp)
        sequence.move(Move.LOST)
        sequence.rows = empty_table()
        sequence.committed = sequence.filled_tokens = 0
        sequence.cut_found(0)
        memory.blocks.release(kept)
        memory.collect(kept)
