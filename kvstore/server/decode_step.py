"""Steps and their operations as the core's events.

The hot path: each field is read once, and a path is put together only to refuse.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from kvstore.core.bounds import CHILDREN_MAX, FREED_MAX
from kvstore.core.calls import Single, Step
from kvstore.core.config import OPERATIONS_MAX
from kvstore.core.errors import FieldInvalid
from kvstore.core.operations import (
    Allocate,
    Commit,
    EndSession,
    Fork,
    Free,
    Grow,
    Operation,
    Swap,
    UpdateActivity,
)
from kvstore.core.types import Activity, Direction, Retention, SequenceId, StepNumber, StepTiming, SwapMode
from kvstore.server.fields import block_keys, engine_id, refuse, seconds, sequence_ids, short_text, within
from kvstore.v1 import kvstore_pb2 as pb

__all__ = [
    "decode_allocate",
    "decode_commit",
    "decode_fork",
    "decode_free",
    "decode_single",
    "decode_step",
    "decode_swap",
]

DIRECTIONS = {pb.SwapRequest.IN: Direction.IN, pb.SwapRequest.OUT: Direction.OUT}
MODES = {
    pb.SwapRequest.AUTO: SwapMode.AUTO,
    pb.SwapRequest.KEEP: SwapMode.KEEP,
    pb.SwapRequest.DROP: SwapMode.DROP,
}
RETENTIONS = {
    pb.FreeRequest.RETENTION_UNSPECIFIED: Retention.DEFAULT,
    pb.FreeRequest.CACHE: Retention.CACHE,
    pb.FreeRequest.SESSION: Retention.SESSION,
    pb.FreeRequest.DISCARD: Retention.DISCARD,
}
ACTIVITIES = {
    pb.ACTIVITY_RUNNING: Activity.RUNNING,
    pb.ACTIVITY_WAITING: Activity.WAITING,
    pb.ACTIVITY_PARKED: Activity.PARKED,
}


def decode_step(request: pb.StepRequest, time: float) -> Step:
    return Step(
        time=time,
        engine=engine_id("engine", request.engine),
        step=StepNumber(request.step),
        completed_step=StepNumber(request.completed_step),
        operations=_operations(request.operations),
        timings=tuple([_timing(each) for each in request.timings]) if request.timings else (),
    )


def _timing(timing: pb.StepTiming) -> StepTiming:
    return StepTiming(
        step=StepNumber(timing.step),
        prefill_tokens=timing.prefill_tokens,
        prefill_context=timing.prefill_context,
        decode_sequences=timing.decode_sequences,
        decode_context=timing.decode_context,
        elapsed_seconds=timing.elapsed.seconds + timing.elapsed.nanos / 1e9,
    )


def decode_single(engine: str, operation: Operation, time: float) -> Single:
    return Single(time=time, engine=engine_id("engine", engine), operation=operation)


def decode_allocate(request: pb.AllocateRequest) -> Allocate:
    """Most operations are these, most of them without texts and keys: what is unset is not looked at."""
    session, tenant, keys = request.session, request.tenant, request.block_keys
    return Allocate(
        sequence=request.sequence,  # type: ignore[arg-type]  # To call a NewType costs more than to read it.
        token_count=request.token_count,
        block_keys=block_keys(keys) if keys else (),
        session=session and short_text("session", session),
        turn=request.turn,
        priority=request.priority,
        known_blocks=request.known_blocks,
        tenant=tenant and short_text("tenant", tenant),
    )


def _grow(request: pb.GrowRequest) -> Grow:
    sequences = sequence_ids("sequences", request.sequences, OPERATIONS_MAX)
    tokens, known = request.token_counts[:], request.known_blocks[:]
    for name, column in (("token_counts", tokens), ("known_blocks", known)):
        if len(column) != len(sequences) and (column or name == "token_counts"):
            refuse(name, len(column), "not as long as sequences", f"{len(sequences)}, one for each")
    blocks = tuple(known) if known else (0,) * len(sequences)
    return Grow(sequences=sequences, token_counts=tuple(tokens), known_blocks=blocks)


def decode_fork(request: pb.ForkRequest) -> Fork:
    children = sequence_ids("children", request.children, CHILDREN_MAX)
    return Fork(parent=SequenceId(request.parent), children=children)


def decode_swap(request: pb.SwapRequest) -> Swap:
    direction = DIRECTIONS.get(request.direction)
    if direction is None:
        refuse("direction", request.direction, "not a direction", "IN or OUT")
    mode = MODES.get(request.mode)
    if mode is None:
        refuse("mode", request.mode, "not a mode", "AUTO, KEEP or DROP")
    return Swap(
        sequence=SequenceId(request.sequence),
        direction=direction,
        mode=mode,
        filled_tokens=request.filled_tokens,
    )


def decode_free(request: pb.FreeRequest) -> Free:
    retention = RETENTIONS.get(request.retention)
    if retention is None:
        refuse("retention", request.retention, "not a retention", "CACHE, SESSION, DISCARD or unset")
    return Free(sequences=sequence_ids("sequences", request.sequences, FREED_MAX), retention=retention)


def decode_commit(request: pb.CommitRequest) -> Commit:
    return Commit(
        sequence=SequenceId(request.sequence),
        first_block=request.first_block,
        block_keys=block_keys(request.block_keys),
    )


def _update_activity(request: pb.UpdateActivityRequest) -> UpdateActivity:
    activity = ACTIVITIES.get(request.activity)
    if activity is None:
        refuse("activity", request.activity, "not an activity", "RUNNING, WAITING or PARKED")
    delay = seconds("resume_delay", request.resume_delay) if request.HasField("resume_delay") else -1.0
    return UpdateActivity(
        sequence=SequenceId(request.sequence),
        activity=activity,
        resume_delay_seconds=delay,
        filled_tokens=request.filled_tokens,
    )


def _end_session(request: pb.EndSessionRequest) -> EndSession:
    if not request.session:
        refuse("session", "", "empty", "name the session that is over")
    return EndSession(
        session=short_text("session", request.session), tenant=short_text("tenant", request.tenant)
    )


DECODERS: Mapping[str, Callable[[Any], Operation]] = {
    "allocate": decode_allocate,
    "commit": decode_commit,
    "end_session": _end_session,
    "fork": decode_fork,
    "free": decode_free,
    "grow": _grow,
    "swap": decode_swap,
    "update_activity": _update_activity,
}
# The operations that exist alone too, and then name their engine.
UNARY = frozenset({"allocate", "commit", "fork", "free", "swap"})


def _operations(operations: Sequence[pb.Operation]) -> tuple[Operation, ...]:
    if len(operations) > OPERATIONS_MAX:
        refuse("operations", len(operations), "too many", f"at most {OPERATIONS_MAX} a step")
    decoded: list[Operation] = []
    kind: str | None = None
    try:
        for operation in operations[:]:
            kind = operation.WhichOneof("kind")
            if kind is None:
                _refuse_unset()
            message = getattr(operation, kind)
            if kind in UNARY and message.engine:
                _refuse_engine(message.engine)
            decoded.append(DECODERS[kind](message))
    except FieldInvalid as error:
        path = f"operations[{len(decoded)}]"
        raise within(f"{path}.{kind}" if kind else path, error) from None
    return tuple(decoded)


def _refuse_unset() -> NoReturn:
    refuse("", "unset", "no operation", "set one kind; this store may be older than the engine's client")


def _refuse_engine(engine: str) -> NoReturn:
    """The step's own holds: two that differ would be one too many."""
    refuse("engine", engine, "set inside a step", "leave it empty; the step names its engine")
