"""Sequences that end: freed by their engine, or left behind by one that is gone."""

from collections.abc import Iterable

import numpy as np

from kvstore.core.admission import Admission
from kvstore.core.blocks import NO_FRAME, Rows, concat
from kvstore.core.engines import Engine, Fence, Release, SessionEnd, TurnEnd, Used
from kvstore.core.leaving import Leaving
from kvstore.core.memory import Memory
from kvstore.core.operations import Free
from kvstore.core.sequences import Sequence
from kvstore.core.settling import Settling
from kvstore.core.swaps import Swaps
from kvstore.core.types import GPU, SWAPPED, SWAPPING_OUT, Retention, StepNumber

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

    def free(self, engine: Engine, operations: Iterable[Free], fence: StepNumber) -> None:
        """Unknown sequences are passed over, and of two operations on one the first counts."""
        gone: dict[Retention, list[Sequence]] = {}
        for operation in operations:
            for id in operation.sequences:
                sequence = engine.sequences.pop(id, None)
                if sequence is not None:
                    gone.setdefault(_retention(sequence, operation.retention), []).append(sequence)
        self._free(engine, gone, fence)

    def _free(self, engine: Engine, gone: dict[Retention, list[Sequence]], fence: StepNumber) -> None:
        for retention, sequences in gone.items():
            for sequence in sequences:
                sequence.freed = True
                self._swaps.waiting.stop(sequence)
                self._admission.leave(sequence)
                self._leaving.idle.pop(sequence, None)
                engine.moved.pop(sequence.id, None)
            self._release(engine, sequences, retention, fence)

    def _release(self, engine: Engine, gone: list[Sequence], retention: Retention, fence: StepNumber) -> None:
        if self._memory.eviction.learns:
            self._note_uses(engine, gone, fence)
        blocks = self._memory.blocks
        on_gpu = [sequence for sequence in gone if sequence.state is not SWAPPED]
        rows = concat([sequence.rows for sequence in on_gpu])
        if rows.size:
            # A swap-out has put its references into limbo already.
            staying = [sequence.rows for sequence in on_gpu if not _leaves(sequence)]
            blocks.give_up(rows if len(staying) == len(on_gpu) else concat(staying))
            distinct = len(on_gpu) == 1
            engine.fences.append(Release(fence=fence, rows=rows, retention=retention, distinct=distinct))
        # Copies below are the service's own: no work of the engine has to be waited for.
        claimed = [sequence.claimed for sequence in gone if sequence.claimed]
        if claimed:
            blocks.unclaim(concat(claimed))
            self._memory.collect(concat(claimed))
            swapped = concat([each.rows for each in gone if each.state is SWAPPED])
            self._settling.retain(swapped, retention)
        if retention in (Retention.DEFAULT, Retention.SESSION):
            self._end_turns(engine, gone, retention, fence)

    def _note_uses(self, engine: Engine, gone: list[Sequence], fence: StepNumber) -> None:
        """Before the references end, behind what publishes the blocks."""
        size = self._memory.block_tokens
        engine.fences.extend(
            Used(
                fence=fence,
                domain=sequence.domain,
                keys=tuple(sequence.keys[: sequence.committed]),
                rows=sequence.rows[: sequence.committed],
                found=sum(sequence.found_tokens) // size,
                prompt_tokens=sequence.prompt_tokens,
                answer_tokens=sequence.token_count - sequence.prompt_tokens,
                turn=sequence.turn if sequence.session else 0,
            )
            for sequence in gone
            if sequence.committed and not sequence.forgotten
        )

    def _end_turns(
        self, engine: Engine, gone: list[Sequence], retention: Retention, fence: StepNumber
    ) -> None:
        """Behind what publishes them. Of a turn that has committed nothing, nothing is kept."""
        engine.fences.extend(
            TurnEnd(
                fence=fence,
                domain=sequence.domain,
                session=sequence.session,
                turn=sequence.turn,
                keys=tuple(sequence.keys[: sequence.committed]),
                retention=retention,
            )
            for sequence in gone
            if sequence.session and sequence.committed and not sequence.forgotten
        )

    # --------------------------------------------------------------- engines that are gone

    def abandon(self, engine: Engine) -> None:
        """The engine is gone or silent: frees all it has. Frames that it may still write to stay
        held, as its quarantine, until `release_quarantine`. Commits not yet visible never will be."""
        everything = Free(sequences=tuple(engine.sequences))
        self.free(engine, [everything], engine.last_step)
        engine.quarantine = [
            each for each in engine.fences if isinstance(each, Release | SessionEnd | TurnEnd)
        ]
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
        frames = self._memory.blocks.frame[GPU][np.unique(_rows(engine.quarantine))]
        return int((frames != NO_FRAME).sum())


def _rows(fences: Iterable[Fence]) -> Rows:
    return concat(fence.rows for fence in fences if isinstance(fence, Release))


def _leaves(sequence: Sequence) -> bool:
    return sequence.state is SWAPPING_OUT or sequence.cancelled


def _retention(sequence: Sequence, asked: Retention) -> Retention:
    """DEFAULT means CACHE where the sequence names no session; else `Settling.retain` says what."""
    return Retention.CACHE if asked is Retention.DEFAULT and not sequence.session else asked
