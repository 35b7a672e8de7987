"""Sequences on their way between the GPU and the tiers below.

Out: room below is taken and claimed at once, or the sequence is dropped; its bytes are copied
when the work that wrote them has completed; then it gives its GPU frames up. In: GPU frames
are taken at once (`admission.py`), blocks come as the links bring them. A sequence waits for
rows, not for transfers: whoever moves a row, all who wait for it are served.
"""

from array import array
from collections.abc import Callable, Collection

import numpy as np
from msgspec import Struct

from kvstore.core.blocks import NO_FRAME, NO_ROWS, as_table, concat
from kvstore.core.config import StoreConfig
from kvstore.core.links import COPY, LOAD, READ, WRITE, Links, Moved
from kvstore.core.memory import Memory
from kvstore.core.sequences import Move, Sequence
from kvstore.core.types import (
    CPU,
    DISK,
    GPU,
    SWAPPED,
    SWAPPING_IN,
    SWAPPING_OUT,
    Rows,
    StepNumber,
    Tier,
    blocks_for_tokens,
)

__all__ = ["Arrival", "Swaps"]

_NOTHING: frozenset[int] = frozenset()


class Arrival(Struct):
    """A sequence that has got its GPU frames: `held` blocks with content here or below, and `fresh`
    ones without any."""

    sequence: Sequence
    held: "array[int]"
    fresh: "array[int]"


class Swaps:
    """Who waits for which row, and what follows when it has moved."""

    def __init__(
        self, config: StoreConfig, memory: Memory, links: Links, moved: Callable[[Sequence], None]
    ) -> None:
        self._config = config
        self._memory = memory
        self._links = links
        # Told each sequence whose state has changed other than in the answer to its engine.
        self._moved = moved
        self._waiting: dict[tuple[Tier, int], list[Sequence]] = {}
        # Swaps taken on since the start.
        self.swaps_out = self.swaps_in = 0

    # ----------------------------------------------------------------------------- out

    def start_out(self, sequence: Sequence, filled_tokens: int, fence: StepNumber) -> bool:
        """Claims room below for the filled blocks. False, and nothing changed, where there is none."""
        blocks, memory = self._memory.blocks, self._memory
        kept = sequence.rows[: blocks_for_tokens(filled_tokens, self._config.block_tokens)]
        if not kept or not self._config.cpu_frames:
            return False
        rows = np.array(kept, np.intp)
        below = blocks.valid[CPU][rows] | blocks.valid[DISK][rows]
        lacking = rows[~below & (blocks.frame[CPU][rows] == NO_FRAME)]
        blocks.claim(rows)
        if not memory.make_room(CPU, lacking.size, self._config.cpu_frames_reserved):
            blocks.unclaim(rows)
            return False
        memory.add_replicas(CPU, lacking)
        blocks.give_up(np.array(sequence.rows, np.intp))
        sequence.move(Move.OUT)
        self.swaps_out += 1
        sequence.claimed = kept
        sequence.filled_tokens = filled_tokens
        sequence.out_fence = fence
        sequence.begun = False
        self._wait(sequence, CPU, rows[~below].tolist())
        return True

    def begin_out(self, sequence: Sequence, fence: StepNumber) -> None:
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
            self._finish_out(sequence)
            self._moved(sequence)

    def _finish_out(self, sequence: Sequence) -> None:
        rows = np.array(sequence.rows, np.intp)
        failed = sequence.first_failed is not None
        sequence.move(Move.COPY_FAILED if failed else Move.COPIED)
        self._memory.blocks.leave_limbo(rows)
        if failed:
            self._unclaim(sequence)
            sequence.committed = sequence.filled_tokens = 0
        sequence.rows = sequence.claimed[:]
        sequence.first_failed = None
        self._memory.collect(rows)

    def cancel_out(self, sequence: Sequence) -> None:
        """Back in. At once, unless a copy of a block that the engine may write to still runs."""
        blocks = self._memory.blocks
        rows = np.array(sequence.rows, np.intp)
        copying = (blocks.pins[CPU][rows] > 0) & ~blocks.indexed[rows]
        self.stop_waiting(sequence)
        # It may be written again: copies still queued must not run, unless another waits for them.
        blocks.offered[rows[(blocks.claims[rows] == 1) & ~copying]] = False
        if copying.any():
            sequence.move(Move.CANCEL_LATE)
            sequence.cancelled = True
            self._wait(sequence, CPU, rows[copying].tolist())
            return
        sequence.move(Move.CANCEL)
        self._take_back(sequence)

    def _take_back(self, sequence: Sequence) -> None:
        blocks, rows = self._memory.blocks, np.array(sequence.rows, np.intp)
        blocks.take_back(rows)
        self._unclaim(sequence)
        sequence.first_failed = None
        self._memory.collect(rows)

    # ------------------------------------------------------------------------------ in

    def start_in(self, arriving: list[Arrival]) -> None:
        """Sequences have their frames; what is not in them yet is asked for. One look for all."""
        if not arriving:
            return
        held = concat([each.held for each in arriving])
        unfilled = held[~self._memory.blocks.valid[GPU][held]]
        coming = set(unfilled.tolist()) if unfilled.size else _NOTHING
        unclaimed: list[array[int]] = []
        for each in arriving:
            sequence = each.sequence
            sequence.rows = each.held + each.fresh
            sequence.held_blocks = len(each.held)
            self.swaps_in += sequence.state is SWAPPED
            sequence.first_failed = None
            waited_for = [row for row in each.held if row in coming] if coming else None
            if waited_for:
                sequence.move(Move.GRANTED_LOADING)
                self._wait(sequence, GPU, waited_for)
                self._links.ask(LOAD, waited_for)
            else:
                sequence.move(Move.GRANTED)
                if sequence.claimed:
                    unclaimed.append(sequence.claimed)
                    sequence.claimed = as_table()
        if unclaimed:
            rows = concat(unclaimed)
            self._memory.blocks.unclaim(rows)
            self._memory.collect(rows)

    def _finish_in(self, sequence: Sequence) -> None:
        if sequence.cancelled:
            sequence.cancelled = False
            sequence.move(Move.LOADED)
            self._take_back(sequence)
        elif sequence.first_failed is None:
            sequence.move(Move.LOADED)
            rows = np.array(sequence.claimed, np.intp)
            self._unclaim(sequence)
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
        self._unclaim(sequence)
        memory.collect(np.concatenate([lost, claimed]))
        fresh = memory.grant(NO_ROWS, lost.size)
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
        sequence.rows = as_table()
        sequence.committed = sequence.filled_tokens = 0
        sequence.cut_found(0)
        memory.blocks.release(kept)
        memory.collect(kept)

    # ------------------------------------------------------------------------ forgetting

    def deny(self, rows: Rows) -> None:
        """Whoever waits for these on the GPU is not to have them: as if their loads had failed."""
        self._serve(GPU, rows, failed=True)

    def cut(self, sequence: Sequence, lost: Collection[int]) -> None:
        """Of the blocks that a swap keeps for the sequence, these are there no more."""
        first = next(place for place, row in enumerate(sequence.claimed) if row in lost)
        if sequence.state is SWAPPING_OUT:
            failed = sequence.first_failed
            sequence.first_failed = first if failed is None else min(first, failed)
        elif sequence.state is SWAPPING_IN:
            # What has come is on the GPU; for the rest it waits.
            self.deny(np.array([row for row in sequence.claimed if row in lost], np.intp))
        else:
            gone = np.array(sequence.claimed[first:], np.intp)
            sequence.rows, sequence.claimed = sequence.rows[:first], sequence.claimed[:first]
            sequence.filled_tokens = min(sequence.filled_tokens, first * self._config.block_tokens)
            self._memory.blocks.unclaim(gone)
            self._memory.collect(gone)

    # ------------------------------------------------------------------------- waiting

    def _wait(self, sequence: Sequence, tier: Tier, rows: list[int]) -> None:
        sequence.waits = len(rows)
        for row in rows:
            self._waiting.setdefault((tier, row), []).append(sequence)

    def stop_waiting(self, sequence: Sequence) -> None:
        """The sequence is freed or needs its rows no more; what moves them goes on."""
        if not sequence.waits:
            return
        for tier in (GPU, CPU):
            for row in sequence.rows:
                waiting = self._waiting.get((tier, row), [])
                if sequence in waiting:
                    waiting.remove(sequence)
                    if not waiting:
                        del self._waiting[tier, row]
        sequence.waits = 0

    def waiting_rows(self) -> dict[Sequence, list[tuple[Tier, int]]]:
        """Who waits for what."""
        waiting: dict[Sequence, list[tuple[Tier, int]]] = {}
        for place, sequences in self._waiting.items():
            for sequence in sequences:
                waiting.setdefault(sequence, []).append(place)
        return waiting

    def _unclaim(self, sequence: Sequence) -> None:
        self._memory.blocks.unclaim(np.array(sequence.claimed, np.intp))
        sequence.claimed = as_table()

    def end(self, moved: Moved) -> None:
        """A transfer has ended: serves those who waited, asks for the next leg of the way."""
        blocks, link = self._memory.blocks, moved.link
        tier, good, bad = link[1], moved.good, moved.bad
        if link in (LOAD, READ):
            # Whoever waits for these, waits for them on the GPU: a read is half of the way.
            tier = GPU
            bad = np.union1d(bad, self.lose(bad))
            bad = np.union1d(bad, self._give_up(moved.late))
        if link == READ:
            self._links.ask(LOAD, good[blocks.unfilled(good)].tolist())
            good = NO_ROWS
        elif link == COPY:
            self._links.ask_down(WRITE, good[blocks.to_disk[good]])
        self._serve(tier, good, failed=False)
        self._serve(tier, bad, failed=True)
        ended = np.concatenate([moved.good, bad])
        self._memory.collect(ended)
        self._memory.discard_again(ended)

    def refuse(self, rows: Rows) -> None:
        """These blocks can't be read from disk now: who waits for them goes on without."""
        self.go_without(self._give_up(rows))

    def go_without(self, rows: Rows) -> None:
        """These blocks will not come: who waits for them goes on with what stands before them."""
        self._serve(GPU, rows, failed=True)
        self._memory.collect(rows)

    def _give_up(self, rows: Rows) -> Rows:
        """These blocks don't come, and are not lost either. Returns them and, of what hangs on them, what
        is not on its way: of use to nobody who waits for both."""
        if not rows.size:
            return rows
        blocks = self._memory.blocks
        below = self._memory.prefix.with_descendants(rows)
        return np.union1d(rows, below[blocks.unfilled(below) & (blocks.pins[GPU][below] == 0)])

    def lose(self, rows: Rows) -> Rows:
        """The content of these blocks is lost: no one may find them, or what hangs on them, again.

        Returns those of them, and of what hangs on them, that will not be filled any more.
        """
        blocks, doomed = self._memory.blocks, self._memory.forget(rows)
        idle = blocks.pins[GPU][doomed] == 0
        unfilled: Rows = doomed[blocks.unfilled(doomed) & idle]
        return unfilled

    def _serve(self, tier: Tier, rows: Rows, *, failed: bool) -> None:
        finished: list[Sequence] = []
        for row in rows.tolist():
            for sequence in self._waiting.pop((tier, row), []):
                sequence.waits -= 1
                if failed:
                    place = sequence.rows.index(row)
                    first = sequence.first_failed
                    sequence.first_failed = place if first is None else min(place, first)
                if not sequence.waits:
                    finished.append(sequence)
        for sequence in finished:
            self._finish(sequence)

    def _finish(self, sequence: Sequence) -> None:
        """The sequence's last row has moved, or will not."""
        if sequence.state is SWAPPING_IN:
            self._finish_in(sequence)
        elif sequence.begun:
            self._finish_out(sequence)
        else:
            return
        self._moved(sequence)
