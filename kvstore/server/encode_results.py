"""The results of operations as the contract's messages."""

from kvstore.core.operations import (
    AllocateResult,
    CommitResult,
    Decision,
    EndSessionResult,
    ForkResult,
    FreeResult,
    GrowResult,
    Result,
    SwapResult,
    UpdateActivityResult,
)
from kvstore.core.types import Outcome, SequenceState
from kvstore.server.clock import timestamp
from kvstore.server.fields import engine_name
from kvstore.v1 import kvstore_pb2 as pb

__all__ = [
    "SEQUENCE_STATES",
    "encode_allocate",
    "encode_decision",
    "encode_fork",
    "encode_result",
    "encode_swap",
    "fill_allocate",
    "fill_grow",
]

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


def encode_allocate(result: AllocateResult) -> pb.AllocateResponse:
    response = pb.AllocateResponse()
    fill_allocate(response, result)
    return response


def fill_grow(response: pb.GrowResponse, result: GrowResult) -> None:
    response.frame_counts.extend(result.frame_counts)
    response.frames.extend(result.frames)
    for other in result.others:
        fill_allocate(response.others.add(place=other.place).result, other.result)


def encode_fork(result: ForkResult) -> pb.ForkResponse:
    return pb.ForkResponse(outcome=OUTCOMES[result.outcome])


def encode_swap(result: SwapResult) -> pb.SwapResponse:
    return pb.SwapResponse(
        outcome=OUTCOMES[result.outcome],
        state=SEQUENCE_STATES[result.state],
        block_table=result.block_table,
        valid_tokens=result.valid_tokens,
        decision=encode_decision(result.decision) if result.decision else None,
        frames_short=result.frames_short,
    )


def fill_allocate(response: pb.AllocateResponse, result: AllocateResult) -> None:
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


def encode_result(result: Result) -> pb.Result:
    match result:
        case AllocateResult():
            return pb.Result(allocate=encode_allocate(result))
        case GrowResult():
            grown = pb.Result()
            fill_grow(grown.grow, result)
            return grown
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


def encode_decision(decision: Decision) -> pb.Decision:
    return pb.Decision(
        time=timestamp(decision.time),
        kind=decision.kind,
        chosen=decision.chosen,
        other=decision.other,
        chosen_cost_seconds=decision.chosen_cost_seconds,
        other_cost_seconds=decision.other_cost_seconds,
        reason=decision.reason,
        engine=engine_name(decision.engine) if decision.engine else "",
        sequence=decision.sequence,
        session=decision.session,
        tenant=decision.tenant,
        inputs=dict(decision.inputs),
    )
