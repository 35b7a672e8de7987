"""Operations of a step from plain numbers, so that a test is a list of them."""

from collections.abc import Sequence

from kvstore.core.operations import Allocate, Commit, EndSession, Fork, Free, Grow, Swap, UpdateActivity
from kvstore.core.types import Activity, BlockKey, Direction, Retention, SequenceId, SwapMode

__all__ = [
    "activity",
    "allocate",
    "commit",
    "end_session",
    "fork",
    "free",
    "grow",
    "swap_in",
    "swap_out",
]

NO_KEYS: tuple[BlockKey, ...] = ()


def allocate(
    sequence: int,
    token_count: int,
    block_keys: Sequence[BlockKey] = NO_KEYS,
    *,
    session: str = "",
    priority: int = 0,
    known_blocks: int = 0,
    tenant: str = "",
    turn: int = 0,
) -> Allocate:
    return Allocate(
        sequence=SequenceId(sequence),
        token_count=token_count,
        block_keys=tuple(block_keys),
        session=session,
        priority=priority,
        known_blocks=known_blocks,
        tenant=tenant,
        turn=turn,
    )


def commit(sequence: int, block_keys: Sequence[BlockKey], first_block: int = 0) -> Commit:
    return Commit(sequence=SequenceId(sequence), first_block=first_block, block_keys=tuple(block_keys))


def fork(parent: int, *children: int) -> Fork:
    return Fork(parent=SequenceId(parent), children=tuple(SequenceId(child) for child in children))


def free(*sequences: int, retention: Retention = Retention.DEFAULT) -> Free:
    return Free(sequences=tuple(SequenceId(each) for each in sequences), retention=retention)


def swap_out(sequence: int, filled_tokens: int = 0, mode: SwapMode = SwapMode.KEEP) -> Swap:
    return Swap(
        sequence=SequenceId(sequence), direction=Direction.OUT, mode=mode, filled_tokens=filled_tokens
    )


def swap_in(sequence: int) -> Swap:
    return Swap(sequence=SequenceId(sequence), direction=Direction.IN)


def activity(
    sequence: int, doing: Activity, filled_tokens: int = 0, resume_delay_seconds: float = -1.0
) -> UpdateActivity:
    return UpdateActivity(
        sequence=SequenceId(sequence),
        activity=doing,
        filled_tokens=filled_tokens,
        resume_delay_seconds=resume_delay_seconds,
    )


def grow(sequences: Sequence[int], token_counts: Sequence[int], known_blocks: Sequence[int]) -> Grow:
    return Grow(
        sequences=tuple(map(SequenceId, sequences)),
        token_counts=tuple(token_counts),
        known_blocks=tuple(known_blocks),
    )


def end_session(session: str, tenant: str = "") -> EndSession:
    return EndSession(session=session, tenant=tenant)
