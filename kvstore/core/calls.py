"""Calls of engines and operators: the events that are answered (`answers.py`), if only with `Done`."""

from msgspec import Struct

from kvstore.core.operations import Operation
from kvstore.core.types import (
    BlockKey,
    EngineId,
    ForgetId,
    LinkCost,
    NamespaceId,
    Revision,
    SequenceId,
    StepNumber,
    StepTiming,
    Tier,
    Watermarks,
    WriterId,
)

__all__ = [
    "Attach",
    "Detach",
    "Drain",
    "Forget",
    "ForgetOn",
    "GetSequence",
    "KeepAlive",
    "Lookup",
    "Prefetch",
    "Retain",
    "SetCosts",
    "SetLimits",
    "Single",
    "Step",
    "Watch",
]

# ------------------------------------------------------------------------------- engines


class Attach(Struct, frozen=True, kw_only=True, gc=False):
    """A process wants to use the pools. The shell has checked the layout's sizes against them.

    `engine` is the id it gets if `request_id` is new; the answer names the one it has.
    """

    time: float
    engine: EngineId
    request_id: str
    namespace: NamespaceId
    writer: WriterId
    build: str
    lease_seconds: float


class KeepAlive(Struct, frozen=True, kw_only=True, gc=False):
    time: float
    engine: EngineId
    completed_step: StepNumber
    seen_revision: Revision = Revision(0)


class Detach(Struct, frozen=True, kw_only=True, gc=False):
    time: float
    engine: EngineId


class Step(Struct, frozen=True, kw_only=True, gc=False):
    """All operations of one engine iteration: checked whole, then applied in phases."""

    time: float
    engine: EngineId
    step: StepNumber
    completed_step: StepNumber
    operations: tuple[Operation, ...]
    # Of steps that have completed, each told once.
    timings: tuple[StepTiming, ...] = ()


class Single(Struct, frozen=True, kw_only=True, gc=False):
    """One operation of an engine that makes unary calls; the store numbers the step."""

    time: float
    engine: EngineId
    operation: Operation


class Lookup(Struct, frozen=True, kw_only=True, gc=False):
    """How much of a prompt is cached. Takes nothing, but renews the lease."""

    time: float
    engine: EngineId
    block_keys: tuple[BlockKey, ...]
    tenant: str = ""


class GetSequence(Struct, frozen=True, kw_only=True, gc=False):
    """How one sequence stands. Changes nothing, but renews the lease."""

    time: float
    engine: EngineId
    sequence: SequenceId


class Prefetch(Struct, frozen=True, kw_only=True, gc=False):
    """Starts to bring up what is cached of a prompt, or of a session's chain: to `target`, CPU or GPU."""

    time: float
    engine: EngineId
    block_keys: tuple[BlockKey, ...] = ()
    session: str = ""
    target: Tier = Tier.CPU
    tenant: str = ""


class Retain(Struct, frozen=True, kw_only=True, gc=False):
    """Keeps what is cached of a prompt, or of the chain of a session, longer than other cache, for a time."""

    time: float
    engine: EngineId
    ttl_seconds: float
    block_keys: tuple[BlockKey, ...] = ()
    session: str = ""
    priority: int = 0
    tenant: str = ""


# ----------------------------------------------------------------------------- operators


class Watch(Struct, frozen=True, kw_only=True, gc=False):
    """From now on `Effects.happened` tells what happens; or no more. Told once more it changes nothing."""

    time: float
    on: bool


class Drain(Struct, frozen=True, kw_only=True, gc=False):
    """No new engines and sequences from now on, and what is worth keeping is to be written to disk.

    Told again it asks for what has been committed or has failed meanwhile. `on` False: work is taken again.
    """

    time: float
    on: bool = True


class Forget(Struct, frozen=True, kw_only=True, gc=False):
    """Takes out of every tier what a session, a tenant, a namespace or writers have left; all that is named
    counts, and of what is not (no text, 0, nothing) all.

    Of a session, the blocks that nobody else uses; with `whole_chain` all of its chain, and with them
    all that hangs on these.
    """

    time: float
    session: str = ""
    tenant: str = ""
    namespace: NamespaceId = NamespaceId(0)
    writers: tuple[WriterId, ...] = ()
    whole_chain: bool = False


class ForgetOn(Struct, frozen=True, kw_only=True, gc=False):
    """The next lot of a Forget that is not done."""

    time: float
    forget: ForgetId


class SetLimits(Struct, frozen=True, kw_only=True, gc=False):
    """An operator sets the watermarks of some tiers. Limits of links are the movers' affair."""

    time: float
    watermarks: tuple[Watermarks, ...]


class SetCosts(Struct, frozen=True, kw_only=True, gc=False):
    """What the links can do now, all that is known: told at the start, and when it has changed.

    `block_bytes`: of a block, all ranks together.
    """

    time: float
    block_bytes: int
    links: tuple[LinkCost, ...]
