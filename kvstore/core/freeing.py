"""Sequences that end: freed by their engine, or left behind by one that is gone."""

from collections.abc import Iterable

import numpy as np

from kvstore.core.admission import Admission
from kvstore.core.blocks import NO_FRAME, Rows, concat
from kvstore.core.engines import Engine, Fence, Release, SessionEnd
from kvstore.core.events import Free
from kvstore.core.leaving import Leaving
from kvstore.core.memory import Memory
from kvstore.core.sequences import Sequence
from kvstore.core.settling import Settling
from kvstore.core.swaps import Swaps
from kvstore.core.types import Retention, SequenceState, StepNumber, Tier

__all__ = ["Freeing"]


class Freeing:
    """Takes sequences out of an engine; their references end when its fence passes."""

    def __init__(
        self, memory: Memory, swaps: Swaps, admission: Admission, leaving: Leaving, settling: Settling
    ) -> None:
        self._memory = memory
        self._swaps = swaps
        self._admission = admission
        self._leaving = leaving
        self._settling = settling

    def free(self, engine: Engine, operation: Free, fence: StepNumber) -> None:
        """Unknown sequences are passed over."""
        known = dict.fromkeys(id for id in operation.sequences if id in engine.sequences)
        gone = [engine.sequences.pop(id) for id in known]
        self._free(engine, gone, operation.retention, fence)

    def _free(self, engine: Engine, gone: list[Sequence], retention: Retention, fence: StepNumber) -> None:
        for sequence in gone:
            sequence.freed = True
            self._swaps.stop_waiting(sequence)
            self._admission.leave(sequence)
            self._leaving.idle.pop(sequence, None)
            engine.moved.pop(sequence.id, None)
        for kept, sequences in _by_retention(gone, retention).items():
            self._release(engine, sequences, kept, fence)

    def _release(self, engine: Engine, gone: list[Sequence], retention: Retention, fence: StepNumber) -> None:
        blocks = self._memory.blocks
        claimed = concat(sequence.claimed for sequence in gone)
        blocks.unclaim(claimed)
        swapped = [sequence for sequence in gone if sequence.state is SequenceState.SWAPPED]
        on_gpu = [sequence for sequence in gone if sequence.state is not SequenceState.SWAPPED]
        # A swap-out has put its references into limbo already.
        blocks.give_up(concat(sequence.rows for sequence in on_gpu if not _leaves(sequence)))
        rows = concat(sequence.rows for sequence in on_gpu)
        if rows.size:
            engine.fences.append(Release(fence=fence, rows=rows, retention=retention))
        if claimed.size:
            self._memory.collect(claimed)
            self._settling.retain(concat(sequence.rows for sequence in swapped), retention)

    # --------------------------------------------------------------- engines that are gone

    def abandon(self, engine: Engine) -> None:
        """The engine is gone or silent: frees all it has. Frames that it may still write to stay
        held, as its quarantine, until `release_quarantine`. Commits not yet visible never will be."""
        gone = list(engine.sequences.values())
        engine.sequences.clear()
        self._free(engine, gone, Retention.DEFAULT, engine.last_step)
        engine.quarantine = [each for each in engine.fences if isinstance(each, Release | SessionEnd)]
        engine.fences.clear()
        engine.pending.clear()
        engine.moved.clear()
        engine.pressed.clear()
        # Held, not in limbo: nothing says when they will come back.
        self._memory.blocks.take_back(_rows(engine.quarantine))

    def release_quarantine(self, engine: Engine) -> None:
        """No process maps the pools for this engine any more: all its work has ended."""
        self._memory.blocks.give_up(_rows(engine.quarantine))
        engine.fences.extend(engine.quarantine)
        engine.quarantine = []
        engine.completed_step = engine.last_step
        self._settling.settle(engine)

    def quarantined_frames(self, engine: Engine) -> int:
        if not engine.quarantine:
            return 0
        frames = self._memory.blocks.frame[Tier.GPU, np.unique(_rows(engine.quarantine))]
        return int((frames != NO_FRAME).sum())


def _rows(fences: Iterable[Fence]) -> Rows:
    return concat(fence.rows for fence in fences if isinstance(fence, Release))


def _leaves(sequence: Sequence) -> bool:
    return sequence.state is SequenceState.SWAPPING_OUT or sequence.cancelled


def _by_retention(gone: Iterable[Sequence], asked: Retention) -> dict[Retention, list[Sequence]]:
    """DEFAULT means SESSION where the sequence names one, else CACHE."""
    sorted_out: dict[Retention, list[Sequence]] = {}
    for sequence in gone:
        retention = asked
        if asked is Retention.DEFAULT:
            retention = Retention.SESSION if sequence.session else Retention.CACHE
        sorted_out.setdefault(retention, []).append(sequence)
    return sorted_out
