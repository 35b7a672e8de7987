"""Sequences: token streams with block tables, and the moves between their states.

The table `MOVES` is all there is to know about states; ARCHITECTURE.md draws it. What an
engine does with a sequence (running, waiting, parked) is a separate fact, its activity.
"""

import hashlib
from array import array
from enum import auto

from msgspec import Struct, field

from kvstore.core.blocks import empty_table
from kvstore.core.errors import CheckFailed
from kvstore.core.types import (
    DROPPED,
    RESIDENT,
    RUNNING,
    SWAPPED,
    SWAPPING_IN,
    SWAPPING_OUT,
    Activity,
    BlockKey,
    DomainId,
    EngineId,
    Number,
    SequenceId,
    SequenceState,
    StepNumber,
)

__all__ = ["MOVES", "Move", "Sequence", "session_owner"]


class Move(Number):
    GRANTED = auto()  # frames are taken and every block is in them
    GRANTED_LOADING = auto()  # frames are taken; blocks are on their way
    OUT = auto()  # asked to leave the GPU, copies first
    DROP = auto()  # the claim is given up
    LOADED = auto()  # the last block has come, or its loss is made good
    LOST = auto()  # a load failed and there was no frame to compute into
    COPIED = auto()  # the last copy down has ended well
    COPY_FAILED = auto()
    CANCEL = auto()  # back in before a byte had moved
    CANCEL_LATE = auto()  # back in, but a copy still runs


MOVES: dict[tuple[SequenceState, Move], SequenceState] = {
    (DROPPED, Move.GRANTED): RESIDENT,
    (DROPPED, Move.GRANTED_LOADING): SWAPPING_IN,
    (SWAPPED, Move.GRANTED): RESIDENT,
    (SWAPPED, Move.GRANTED_LOADING): SWAPPING_IN,
    (SWAPPING_IN, Move.LOADED): RESIDENT,
    (SWAPPING_IN, Move.LOST): DROPPED,
    (RESIDENT, Move.OUT): SWAPPING_OUT,
    (RESIDENT, Move.DROP): DROPPED,
    (SWAPPING_OUT, Move.COPIED): SWAPPED,
    (SWAPPING_OUT, Move.COPY_FAILED): DROPPED,
    (SWAPPING_OUT, Move.CANCEL): RESIDENT,
    (SWAPPING_OUT, Move.CANCEL_LATE): SWAPPING_IN,
}


class Sequence(Struct, eq=False):
    """One token stream. Compared by identity: an id may be freed and mean another one later."""

    engine: EngineId
    id: SequenceId
    domain: DomainId
    session: str
    turn: int
    priority: int
    # The session, or this sequence alone: whose blocks these are (see Blocks.owner).
    owner: int
    # Keys of the leading full blocks: those asked for at first, then those committed.
    keys: list[BlockKey]
    token_count: int
    # What it was first asked for.
    prompt_tokens: int
    state: SequenceState = DROPPED
    activity: Activity = RUNNING
    # The engine's guess of how long it will not run; below zero: unknown.
    resume_delay_seconds: float = -1.0
    # Block rows in token order; empty while DROPPED. Never shortened or replaced in place:
    # fences of earlier commits hold on to the same array.
    rows: "array[int]" = field(default_factory=empty_table)
    # Whether it has ever had GPU frames.
    begun_once: bool = False
    # Leading blocks that were found in the index or committed.
    committed: int = 0
    # Tokens of the cached prefix it began with, by the tier in which they were found.
    found_tokens: tuple[int, int, int] = (0, 0, 0)
    # Whether it has had frames: its first look into the index was counted then.
    admitted: bool = False
    # Leading tokens whose KV is written, as last told; what a swap keeps.
    filled_tokens: int = 0
    # The fence of its last commit: what is not published yet does not leave.
    commit_fence: StepNumber = StepNumber(0)
    # Whether the part-filled last block may have other sharers.
    forked: bool = False
    # When it was said last that it does not run; and what was chosen when it left last, "swap" or "drop".
    quiet_since: float = 0.0
    left_by: str = ""
    # The step whose completion ends this sequence's last GPU work, once it is not running.
    quiet_step: StepNumber = StepNumber(0)
    # Blocks whose move this sequence still waits for, and the first of them that failed.
    waits: int = 0
    first_failed: int | None = None
    # Rows that a swap keeps in the CPU or disk tier for this sequence (Blocks.claims).
    claimed: "array[int]" = field(default_factory=empty_table)
    # Leading blocks of `rows` whose content a swap-in brings; behind them there is only room.
    held_blocks: int = 0
    # SWAPPING_OUT: the step after which copies may begin, and whether they have. SWAPPING_IN:
    # whether it is a swap-out that was cancelled while a copy ran.
    out_fence: StepNumber = StepNumber(0)
    begun: bool = False
    cancelled: bool = False
    # What it has not published by now, and what it will compute, is never to be found by others.
    forgotten: bool = False
    # The engine has freed it, or is gone. What is still under way ends without it.
    freed: bool = False

    @property
    def told_session(self) -> str:
        """Its session, for who asks what was decided of it: of one that is forgotten nobody is told."""
        return "" if self.forgotten else self.session

    def move(self, move: Move) -> None:
        state = MOVES.get((self.state, move))
        if state is None:
            raise CheckFailed(f"{move.name} of a sequence that is {self.state.name}")
        self.state = state

    def cut_found(self, token_count: int) -> None:
        """A load has failed: of the prefix that was found only so much is left. What came from
        furthest below counts as lost first."""
        left = []
        for tokens in self.found_tokens:
            left.append(min(tokens, token_count))
            token_count -= left[-1]
        self.found_tokens = (left[0], left[1], left[2])

    def fork(self, child: SequenceId, block_tokens: int) -> "Sequence":
        """A sequence with the same blocks. A part-filled last one is shared until either Allocates."""
        self.forked = self.token_count % block_tokens != 0
        return Sequence(
            engine=self.engine,
            id=child,
            domain=self.domain,
            session=self.session,
            turn=self.turn,
            priority=self.priority,
            owner=self.owner,
            keys=self.keys[:],
            token_count=self.token_count,
            prompt_tokens=self.prompt_tokens,
            state=self.state,
            rows=self.rows[:],
            begun_once=True,
            committed=self.committed,
            held_blocks=self.held_blocks,
            found_tokens=self.found_tokens,
            # It has looked for nothing.
            admitted=True,
            filled_tokens=self.filled_tokens,
            forked=self.forked,
            forgotten=self.forgotten,
        )


def session_owner(domain: DomainId, session: str) -> int:
    """A number for a session, the same on every run. Lone sequences have negative ones."""
    digest = hashlib.sha256(domain.to_bytes(8, "little") + session.encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
