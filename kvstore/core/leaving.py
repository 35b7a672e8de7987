"""Sequences that leave the GPU: because their engine says so, or because others need the room."""

import numpy as np

from kvstore.core.blocks import as_table
from kvstore.core.config import StoreConfig
from kvstore.core.engines import Engine, Release, SwapOut
from kvstore.core.memory import Memory
from kvstore.core.operations import Decision, Swap, SwapResult
from kvstore.core.ports import SwapPolicy
from kvstore.core.sequences import Move, Sequence
from kvstore.core.swaps import Swaps
from kvstore.core.types import LATER, OK, PARKED, RESIDENT, SWAPPING_IN, Retention, StepNumber, SwapMode

__all__ = ["Leaving"]


class Leaving:
    """Swap or drop, asked for or by the store itself."""

    def __init__(self, config: StoreConfig, memory: Memory, swaps: Swaps, policy: SwapPolicy) -> None:
        self._config = config
        self._memory = memory
        self._swaps = swaps
        self._policy = policy
        # Resident sequences that don't run: the store may move these by itself.
        self.idle: dict[Sequence, Engine] = {}
        # Since the start: drops, those of them for want of room below, and what was moved by the store.
        self.drops = self.drops_for_room = self.reliefs = 0

    def swap_out(self, engine: Engine, operation: Swap, fence: StepNumber, time: float) -> SwapResult:
        sequence = engine.sequences[operation.sequence]
        if sequence.state is SWAPPING_IN:
            return SwapResult(outcome=LATER, state=sequence.state)
        decision = None
        if sequence.state is RESIDENT:
            filled = engine.knows_filled(sequence, operation.filled_tokens)
            decision = self.leave(engine, sequence, filled, operation.mode, fence, time)
        return SwapResult(outcome=OK, state=sequence.state, decision=decision)

    def leave(
        self,
        engine: Engine,
        sequence: Sequence,
        filled_tokens: int,
        mode: SwapMode,
        fence: StepNumber,
        time: float,
    ) -> Decision:
        """Swaps a resident sequence out or drops it; its last work ends with step `fence`."""
        fence = max(fence, sequence.commit_fence)
        # What is committed is filled, whether the engine has said so here or not.
        filled_tokens = max(filled_tokens, sequence.committed * self._config.block_tokens)
        keep = mode is SwapMode.KEEP or (mode is SwapMode.AUTO and self._policy.keeps(filled_tokens))
        swapped = keep and self._swaps.out.start(sequence, filled_tokens, fence)
        if not swapped:
            self.drops_for_room += keep
            self._drop(engine, sequence, fence)
        elif engine.completed_step >= fence:
            self._swaps.out.begin(sequence, fence)
        else:
            engine.fences.append(SwapOut(fence=fence, sequence=sequence))
        self.idle.pop(sequence, None)
        inputs = (*self._policy.inputs(filled_tokens), ("room_below", float(swapped or not keep)))
        return Decision(time=time, kind=mode.name, chosen="swap" if swapped else "drop", inputs=inputs)

    def _drop(self, engine: Engine, sequence: Sequence, fence: StepNumber) -> None:
        rows = np.array(sequence.rows, np.intp)
        self._memory.blocks.give_up(rows)
        engine.fences.append(Release(fence=fence, rows=rows, retention=Retention.CACHE))
        sequence.move(Move.DROP)
        self.drops += 1
        sequence.rows = as_table()
        sequence.committed = sequence.filled_tokens = 0

    def relieve(self, frames_short: int, time: float) -> dict[Sequence, Engine]:
        """Moves idle sequences out until so many frames are on their way back; returns them.

        Of low priority first, then parked before waiting, then those that rest longest.
        """
        moved: dict[Sequence, Engine] = {}
        blocks = self._memory.blocks
        for sequence in sorted(self.idle, key=_worth):
            if frames_short <= 0:
                break
            rows = np.array(sequence.rows, np.intp)
            frames_short -= int((blocks.refs[rows] - blocks.limbo[rows] == 1).sum())
            engine = self.idle[sequence]
            self.leave(engine, sequence, sequence.filled_tokens, SwapMode.AUTO, sequence.quiet_step, time)
            moved[sequence] = engine
        self.reliefs += len(moved)
        return moved


def _worth(sequence: Sequence) -> tuple[int, bool, float]:
    parked = sequence.activity is PARKED
    return sequence.priority, not parked, -sequence.resume_delay_seconds
