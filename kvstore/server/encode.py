"""The core's answers, notices and usage as the contract's messages.

The hot path as well: a step's answer is filled in place, and only with what differs from zero. To make
messages first and put them into others would copy each of them. Frames of copy-on-write pairs, tables and
times pass through unchanged in meaning; monotonic times become Timestamps (`clock.py`).
"""

from collections.abc import Sequence
from pathlib import Path

from kvstore.core.effects import (
    AllocateResult,
    AttachAnswer,
    CommitResult,
    Decision,
    EndSessionResult,
    ForkResult,
    FrameCopy,
    FreeResult,
    KeepAliveAnswer,
    LookupAnswer,
    Notice,
    Result,
    SequenceMoved,
    StepAnswer,
    SwapResult,
    UpdateActivityResult,
)
from kvstore.core.types import (
    EngineId,
    EngineState,
    Outcome,
    Pressure,
    Revision,
    SequenceState,
    Tier,
)
from kvstore.server.clock import fill_timestamp, timestamp, timestamp_today
from kvstore.server.fields import engine_name
from kvstore.tiers.pool import HostPool
from kvstore.v1 import kvstore_pb2 as pb

__all__ = [
    "ENGINE_STATES",
    "PRESSURES",
    "TIERS",
    "encode_allocate",
    "encode_attach",
    "encode_copies",
    "encode_engine",
    "encode_fork",
    "encode_keep_alive",
    "encode_lookup",
    "encode_step",
    "encode_swap",
]

TIERS = {Tier.GPU: pb.TIER_GPU, Tier.CPU: pb.TIER_CPU, Tier.DISK: pb.TIER_DISK}
PRESSURES = {
    Pressure.LOW: pb.PRESSURE_LOW,
    Pressure.HIGH: pb.PRESSURE_HIGH,
    Pressure.FULL: pb.PRESSURE_FULL,
}
OUTCOMES = {
    Outcome.OK: pb.OUTCOME_OK,
    Outcome.LATER: pb.OUTCOME_LATER,
    Outcome.NEVER: pb.OUTCOME_NEVER,
}
SEQUENCE_STATES = {
    SequenceState.RESIDENT: pb.Sequence.RESIDENT,
    SequenceState.SWAPPING_OUT: pb.Sequence.SWAPPING_OUT,
    SequenceState.SWAPPED: pb.Sequence.SWAPPED,
    SequenceState.SWAPPING_IN: pb.Sequence.SWAPPING_IN,
    SequenceState.DROPPED: pb.Sequence.DROPPED,
}
ENGINE_STATES = {
    EngineState.ATTACHED: pb.Engine.ATTACHED,
    EngineState.EXPIRED: pb.Engine.EXPIRED,
    EngineState.DETACHED: pb.Engine.DETACHED,
}
# The keys of LookupResponse.blocks_by_tier, in the order of the core's tuples.
TIER_NAMES = ("gpu", "cpu", "disk")


def encode_attach(
    answer: AttachAnswer, store_epoch: int, *, gpu: HostPool, tether_path: Path, secrets: Sequence[bytes]
) -> pb.AttachResponse:
    """Engines map the GPU pool alone: each rank's descriptor comes by its own tether, as its only one."""
    handles = [
        pb.PoolHandle(
            tier=pb.TIER_GPU,
            rank=rank,
            frame_count=gpu.frame_count,
            block_bytes=gpu.block_bytes,
            frame_stride_bytes=gpu.stride_bytes,
            host=pb.HostMemory(fd_index=0, size_bytes=gpu.frame_count * gpu.stride_bytes),
        )
        for rank in range(gpu.ranks)
    ]
    return pb.AttachResponse(
        engine=encode_engine(answer.engine, EngineState.ATTACHED, answer.lease_expire_time, store_epoch),
        pools=handles,
        fd_socket_path=str(tether_path),
        fd_secrets=secrets,
    )


def encode_step(engine: EngineId, answer: StepAnswer) -> pb.StepResponse:
    response = pb.StepResponse(step=answer.step)
    add = response.results.add
    for result in answer.results:
        if type(result) is AllocateResult:
            _fill_allocate(add().allocate, result)
        else:
            add().CopyFrom(_result(result))
    if answer.copies:
        response.copies.extend(encode_copies(answer.copies))
    _fill_events(response.events, engine, answer.revision, answer.notices)
    fill_timestamp(response.lease_expire_time, answer.lease_expire_time)
    return response


def encode_keep_alive(engine: EngineId, answer: KeepAliveAnswer, store_epoch: int) -> pb.KeepAliveResponse:
    response = pb.KeepAliveResponse(
        engine=encode_engine(engine, answer.state, answer.lease_expire_time, store_epoch)
    )
    _fill_events(response.events, engine, answer.revision, answer.notices)
    return response


def encode_engine(engine: EngineId, state: EngineState, expire_time: float, store_epoch: int) -> pb.Engine:
    return pb.Engine(
        name=engine_name(engine),
        state=ENGINE_STATES[state],
        expire_time=timestamp_today(expire_time),
        store_epoch=store_epoch,
    )


def encode_lookup(answer: LookupAnswer) -> pb.LookupResponse:
    by_tier = {name: count for name, count in zip(TIER_NAMES, answer.blocks_by_tier, strict=True) if count}
    return pb.LookupResponse(blocks_cached=answer.blocks_cached, blocks_by_tier=by_tier)


def encode_allocate(result: AllocateResult) -> pb.AllocateResponse:
    response = pb.AllocateResponse()
    _fill_allocate(response, result)
    return response


def encode_fork(result: ForkResult) -> pb.ForkResponse:
    return pb.ForkResponse(outcome=OUTCOMES[result.outcome])


def encode_swap(result: SwapResult) -> pb.SwapResponse:
    return pb.SwapResponse(
        outcome=OUTCOMES[result.outcome],
        state=SEQUENCE_STATES[result.state],
        block_table=result.block_table,
        valid_tokens=result.valid_tokens,
        decision=_decision(result.decision) if result.decision else None,
        frames_short=result.frames_short,
    )


def encode_copies(copies: Sequence[FrameCopy]) -> list[pb.FrameCopy]:
    return [pb.FrameCopy(source=copy.source, target=copy.target) for copy in copies]


def _fill_allocate(response: pb.AllocateResponse, result: AllocateResult) -> None:
    response.outcome = OUTCOMES[result.outcome]
    response.state = SEQUENCE_STATES[result.state]
    if result.block_table:
        response.block_table.extend(result.block_table)
    if result.first_block:
        response.first_block = result.first_block
    if result.frames_short:
        response.frames_short = result.frames_short
    if result.cached_tokens:
        response.cached_tokens = result.cached_tokens
        response.gpu_tokens, response.cpu_tokens, response.disk_tokens = result.tier_tokens


def _result(result: Result) -> pb.Result:
    match result:
        case AllocateResult():
            return pb.Result(allocate=encode_allocate(result))
        case CommitResult():
            return pb.Result(commit=pb.CommitResponse())
        case FreeResult():
            return pb.Result(free=pb.FreeResponse())
        case ForkResult():
            return pb.Result(fork=encode_fork(result))
        case SwapResult():
            return pb.Result(swap=encode_swap(result))
        case UpdateActivityResult(outcome=outcome, state=state):
            response = pb.UpdateActivityResponse(outcome=OUTCOMES[outcome], state=SEQUENCE_STATES[state])
            return pb.Result(update_activity=response)
        case EndSessionResult():
            return pb.Result(end_session=pb.EndSessionResponse())


def _decision(decision: Decision) -> pb.Decision:
    return pb.Decision(
        time=timestamp(decision.time),
        kind=decision.kind,
        chosen=decision.chosen,
        inputs=dict(decision.inputs),
    )


def _fill_events(
    batch: pb.EventBatch, engine: EngineId, revision: Revision, notices: Sequence[Notice]
) -> None:
    # Set though it be zero: the batch is there, also where nothing has happened.
    batch.revision = revision
    if notices:
        batch.events.extend([_event(engine, notice) for notice in notices])


def _event(engine: EngineId, notice: Notice) -> pb.Event:
    if isinstance(notice, SequenceMoved):
        moved = pb.SequenceMoved(
            engine=engine_name(engine),
            sequence=notice.sequence,
            state=SEQUENCE_STATES[notice.state],
            block_table=notice.block_table,
            valid_tokens=notice.valid_tokens,
        )
        return pb.Event(revision=notice.revision, sequence_moved=moved)
    changed = pb.PressureChanged(tier=TIERS[notice.tier], pressure=PRESSURES[notice.pressure])
    return pb.Event(revision=notice.revision, pressure_changed=changed)
