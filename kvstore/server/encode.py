"""The core's answers, notices and usage as the contract's messages.

The hot path as well: a step's answer is filled in place, and only with what differs from zero. To make
messages first and put them into others would copy each of them. Frames of copy-on-write pairs, tables and
times pass through unchanged in meaning; monotonic times become Timestamps (`clock.py`).
"""

from collections.abc import Sequence
from pathlib import Path

from kvstore.core.answers import (
    AttachAnswer,
    FrameCopy,
    KeepAliveAnswer,
    LookupAnswer,
    SequenceAnswer,
    StepAnswer,
)
from kvstore.core.notices import Notice
from kvstore.core.operations import AllocateResult, GrowResult
from kvstore.core.types import Activity, EngineId, EngineState, Revision, SequenceId
from kvstore.server.clock import fill_timestamp, timestamp_today
from kvstore.server.encode_events import encode_event
from kvstore.server.encode_memory import fill_handle
from kvstore.server.encode_results import SEQUENCE_STATES, encode_result, fill_allocate, fill_grow
from kvstore.server.fields import engine_name
from kvstore.tiers.copying import GpuPool
from kvstore.tiers.cuda_pool import CudaPool
from kvstore.v1 import kvstore_pb2 as pb

__all__ = [
    "ENGINE_STATES",
    "encode_attach",
    "encode_copies",
    "encode_engine",
    "encode_keep_alive",
    "encode_lookup",
    "encode_sequence",
    "encode_step",
]

ACTIVITIES = {
    Activity.RUNNING: pb.ACTIVITY_RUNNING,
    Activity.WAITING: pb.ACTIVITY_WAITING,
    Activity.PARKED: pb.ACTIVITY_PARKED,
}
ENGINE_STATES = {
    EngineState.ATTACHED: pb.Engine.ATTACHED,
    EngineState.EXPIRED: pb.Engine.EXPIRED,
    EngineState.DETACHED: pb.Engine.DETACHED,
}
# The keys of LookupResponse.blocks_by_tier, in the order of the core's tuples.
TIER_NAMES = ("gpu", "cpu", "disk")


def encode_attach(
    answer: AttachAnswer, store_epoch: int, *, gpu: GpuPool, tether_path: Path, secrets: Sequence[bytes]
) -> pb.AttachResponse:
    """Engines map the GPU pool alone: each rank's descriptor comes by its own tether, as its only one."""
    handles = [
        pb.PoolHandle(
            tier=pb.TIER_GPU,
            rank=rank,
            frame_count=gpu.frame_count,
            block_bytes=gpu.block_bytes,
            frame_stride_bytes=gpu.stride_bytes,
        )
        for rank in range(gpu.ranks)
    ]
    for handle in handles:
        if isinstance(gpu, CudaPool):
            fill_handle(handle, gpu)
        else:
            handle.host.fd_index, handle.host.size_bytes = 0, gpu.frame_count * gpu.stride_bytes
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
        # Most are of these: to make the message first and put it in would copy it.
        if type(result) is AllocateResult:
            fill_allocate(add().allocate, result)
        elif type(result) is GrowResult:
            fill_grow(add().grow, result)
        else:
            add().CopyFrom(encode_result(result))
    if answer.copies:
        response.copies.extend(encode_copies(answer.copies))
    _fill_events(response.events, answer.revision, answer.notices)
    fill_timestamp(response.lease_expire_time, answer.lease_expire_time)
    return response


def encode_keep_alive(engine: EngineId, answer: KeepAliveAnswer, store_epoch: int) -> pb.KeepAliveResponse:
    response = pb.KeepAliveResponse(
        engine=encode_engine(engine, answer.state, answer.lease_expire_time, store_epoch)
    )
    _fill_events(response.events, answer.revision, answer.notices)
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


def encode_sequence(id: SequenceId, answer: SequenceAnswer) -> pb.Sequence:
    return pb.Sequence(
        id=id,
        state=SEQUENCE_STATES[answer.state],
        activity=ACTIVITIES[answer.activity],
        token_count=answer.token_count,
        valid_tokens=answer.valid_tokens,
        block_table=answer.block_table,
        session=answer.session,
    )


def encode_copies(copies: Sequence[FrameCopy]) -> list[pb.FrameCopy]:
    return [pb.FrameCopy(source=copy.source, target=copy.target) for copy in copies]


def _fill_events(batch: pb.EventBatch, revision: Revision, notices: Sequence[Notice]) -> None:
    # Set though it be zero: the batch is there, also where nothing has happened.
    batch.revision = revision
    if notices:
        batch.events.extend([encode_event(notice) for notice in notices])
