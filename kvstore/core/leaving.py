"""Sequences that leave the GPU: because their engine says so, or because others need the room."""

import numpy as np

from kvstore.core.blocks import empty_table
from kvstore.core.busy import HeldShare
from kvstore.core.config import StoreConfig
from kvstore.core.engines import Engine, Release, SwapOut
from kvstore.core.links import Links
from kvstore.core.memory import Memory
from kvstore.core.operations import Decision, Swap, SwapResult
from kvstore.core.ports import Departure, Figures, SwapPolicy, Verdict
from kvstore.core.sequences import Move, Sequence
from kvstore.core.swaps import Swaps
from kvstore.core.types import (
    COPY,
    CPU,
    DISK,
    LATER,
    LOAD,
    OK,
    PARKED,
    RESIDENT,
    SWAPPING_IN,
    Retention,
    StepNumber,
    SwapMode,
    blocks_for_tokens,
)

__all__ = ["Leaving"]

# How far back it counts that the GPU was short of room.
PRESSED_SECONDS = 60.0
NAMES = {True: "swap", False: "drop"}


class Leaving:
    """Swap or drop, asked for or by the store itself."""

    def __init__(
        self, config: StoreConfig, memory: Memory, swaps: Swaps, links: Links, policy: SwapPolicy
    ) -> None:
        self._config = config
        self._memory = memory
        self._swaps = swaps
        self._links = links
        self._policy = policy
        # Resident sequences that don't run: the store may move these by itself.
        self.idle: dict[Sequence, Engine] = {}
        # Whether the GPU is short of room: for which share of the time.
        self.pressed = HeldShare(PRESSED_SECONDS)
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
        why: Figures = (),
    ) -> Decision:
        """Swaps a resident sequence out or drops it; its last work ends with step `fence`.

        `why`: figures that led to it, where nobody has asked for it.
        """
        fence = max(fence, sequence.commit_fence)
        # What is committed is filled, whether the engine has said so here or not.
        filled_tokens = max(filled_tokens, sequence.committed * self._config.block_tokens)
        verdict = self._policy.leave(self._departure(sequence, filled_tokens, time))
        keep = mode is SwapMode.KEEP or (mode is SwapMode.AUTO and verdict.keeps)
        swapped = keep and self._swaps.out.start(sequence, filled_tokens, fence)
        if not swapped:
            self.drops_for_room += keep
            self._drop(engine, sequence, fence)
        elif engine.completed_step >= fence:
            self._swaps.out.begin(sequence, fence)
        else:
            engine.fences.append(SwapOut(fence=fence, sequence=sequence))
        self.idle.pop(sequence, None)
        sequence.left_by = NAMES[swapped]
        figures = (
            ("block_tokens", float(self._config.block_tokens)),
            *why,
            ("room_below", float(swapped or not keep)),
        )
        tenant = self._memory.shares.tenant_of(sequence.domain)
        decision = _decision(sequence, tenant, verdict, mode, swapped, bool(why), time, figures)
        self._memory.decisions.note(decision)
        return decision

    def _departure(self, sequence: Sequence, filled_tokens: int, time: float) -> Departure:
        """What swapping it would move, and dropping it redo."""
        blocks, size = self._memory.blocks, self._config.block_tokens
        rows = np.array(sequence.rows[: blocks_for_tokens(filled_tokens, size)], np.intp)
        below = blocks.valid[CPU][rows] | blocks.valid[DISK][rows]
        # What others run on stays, and will be found.
        stays = blocks.indexed[rows] & (blocks.refs[rows] - blocks.limbo[rows] > 1)
        kept = rows.size if stays.all() else int(stays.argmin())
        return Departure(
            time=time,
            tokens=filled_tokens,
            tokens_kept=min(filled_tokens, kept * size),
            blocks_out=int(rows.size - np.count_nonzero(below)),
            blocks_in=rows.size - kept,
            copy=self._links.state(COPY),
            load=self._links.state(LOAD),
            chosen_before=sequence.left_by,
        )

    def _drop(self, engine: Engine, sequence: Sequence, fence: StepNumber) -> None:
        rows = np.array(sequence.rows, np.intp)
        self._memory.blocks.give_up(rows)
        engine.fences.append(Release(fence=fence, rows=rows, retention=Retention.CACHE))
        sequence.move(Move.DROP)
        self.drops += 1
        sequence.rows = empty_table()
        sequence.committed = sequence.filled_tokens = 0

    def relieve(self, frames_short: int, time: float) -> dict[Sequence, Engine]:
        """Moves idle sequences out until so many frames are on their way back; returns them.

        Of low priority first; those parked for so short a time that to move them would cost more than their
        room does go last; then parked before waiting, then those that rest longest.
        """
        moved: dict[Sequence, Engine] = {}
        blocks = self._memory.blocks
        for _, sequence, why in sorted(
            [self._worth(each, time) for each in self.idle], key=lambda each: each[0]
        ):
            if frames_short <= 0:
                break
            why = (("frames_short", float(frames_short)), ("idle_sequences", float(len(self.idle))), *why)
            rows = np.array(sequence.rows, np.intp)
            frames_short -= int((blocks.refs[rows] - blocks.limbo[rows] == 1).sum())
            engine = self.idle[sequence]
            self.leave(
                engine, sequence, sequence.filled_tokens, SwapMode.AUTO, sequence.quiet_step, time, why
            )
            moved[sequence] = engine
        self.reliefs += len(moved)
        return moved

    def _worth(
        self, sequence: Sequence, time: float
    ) -> tuple[tuple[int, bool, bool, float], Sequence, Figures]:
        """What is moved last is worth most; and the figures of one that is parked.

        To hold it costs room as long as it rests, to move it costs two transfers: it is held until it has
        rested for as long as these take (rent or buy). How long it rests is told, or seen.
        """
        parked, resume = sequence.activity is PARKED, sequence.resume_delay_seconds
        if not parked:
            return (sequence.priority, False, True, -resume), sequence, ()
        rests = max(time - sequence.quiet_since, resume)
        departure = self._departure(sequence, sequence.filled_tokens, time)
        pressed = self.pressed.at(time)
        hold = self._policy.hold_seconds(departure, pressed)
        figures = (
            ("rests_seconds", rests),
            ("hold_seconds", hold),
            ("pressed_share", pressed),
        )
        return (sequence.priority, rests < hold, False, -resume), sequence, figures


def _decision(
    sequence: Sequence,
    tenant: str,
    verdict: Verdict,
    mode: SwapMode,
    swapped: bool,
    by_itself: bool,
    time: float,
    figures: Figures,
) -> Decision:
    as_weighed = swapped is verdict.keeps
    reasons = [verdict.reason]
    if mode is not SwapMode.AUTO:
        reasons = ["the engine insists"]
    elif not as_weighed:
        reasons = ["no room below the GPU"]
    if by_itself:
        reasons.insert(0, "the store makes room for others")
    return Decision(
        time=time,
        kind="swap",
        chosen=NAMES[swapped],
        other=NAMES[not swapped],
        chosen_cost_seconds=verdict.seconds if as_weighed else verdict.other_seconds,
        other_cost_seconds=verdict.other_seconds if as_weighed else verdict.seconds,
        reason=", ".join(filter(None, reasons)),
        engine=sequence.engine,
        sequence=sequence.id,
        session=sequence.told_session,
        tenant=tenant,
        inputs=(*verdict.inputs, *figures),
    )
