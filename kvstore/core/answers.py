"""What `Store.handle` answers: one kind for each call of `calls.py` that asks for something, `Done` else."""

from msgspec import Struct

from kvstore.core.notices import Notice
from kvstore.core.operations import Result
from kvstore.core.types import (
    Activity,
    EngineId,
    EngineState,
    ForgetId,
    Frame,
    Revision,
    SequenceState,
    StepNumber,
)

__all__ = [
    "Answer",
    "AttachAnswer",
    "Done",
    "DrainAnswer",
    "ForgetAnswer",
    "FrameCopy",
    "KeepAliveAnswer",
    "LookupAnswer",
    "PrefetchAnswer",
    "RetainAnswer",
    "SequenceAnswer",
    "StepAnswer",
]


class AttachAnswer(Struct, frozen=True, kw_only=True, gc=False):
    """`created` is False when the request id was known: same engine, same lease."""

    engine: EngineId
    lease_expire_time: float
    created: bool


class KeepAliveAnswer(Struct, frozen=True, kw_only=True, gc=False):
    state: EngineState
    lease_expire_time: float
    revision: Revision
    notices: tuple[Notice, ...]


class FrameCopy(Struct, frozen=True, kw_only=True, gc=False):
    """A copy the engine makes on its own stream before its next forward pass."""

    source: Frame
    target: Frame


class StepAnswer(Struct, frozen=True, kw_only=True, gc=False):
    """Results in the order of the operations."""

    step: StepNumber
    results: tuple[Result, ...]
    copies: tuple[FrameCopy, ...]
    revision: Revision
    notices: tuple[Notice, ...]
    lease_expire_time: float


class LookupAnswer(Struct, frozen=True, kw_only=True, gc=False):
    """Leading blocks found, and how many of them have their best copy in each tier."""

    blocks_cached: int
    blocks_by_tier: tuple[int, int, int]


class SequenceAnswer(Struct, frozen=True, kw_only=True, gc=False):
    """A sequence as it is. `valid_tokens`: leading tokens whose KV is in some tier, or on its way, as far as
    the engine has told; `block_table` is there where it is RESIDENT."""

    state: SequenceState
    activity: Activity
    token_count: int
    valid_tokens: int
    block_table: tuple[Frame, ...]
    session: str


class DrainAnswer(Struct, frozen=True, kw_only=True, gc=False):
    """Blocks that can be found and are not on disk; of these, those on their way there; and how many have
    arrived there since the start of the store."""

    blocks_left: int
    blocks_moving: int
    blocks_stored: int


class PrefetchAnswer(Struct, frozen=True, kw_only=True, gc=False):
    """Blocks that are on their way up, or will be as soon as there is room and nothing more urgent."""

    blocks_started: int


class RetainAnswer(Struct, frozen=True, kw_only=True, gc=False):
    """Leading blocks that are retained now; fewer than there are where the tenant's budget is full."""

    blocks_retained: int


class ForgetAnswer(Struct, frozen=True, kw_only=True, gc=False):
    """How far a Forget is: blocks taken out so far. `done`: all is, and durably. `lots_left`: there is more
    to do before the disk is waited for."""

    forget: ForgetId
    blocks_forgotten: int
    done: bool
    lots_left: bool


class Done(Struct, frozen=True, kw_only=True, gc=False):
    """The answer to an event that asks for none."""


Answer = (
    AttachAnswer
    | KeepAliveAnswer
    | StepAnswer
    | LookupAnswer
    | PrefetchAnswer
    | RetainAnswer
    | ForgetAnswer
    | SequenceAnswer
    | DrainAnswer
    | Done
)
