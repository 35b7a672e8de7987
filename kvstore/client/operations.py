"""The operations of a step, built in one line each. What they mean stands in kvstore.proto."""

from collections.abc import Sequence

from google.protobuf import duration_pb2

from kvstore.v1 import kvstore_pb2 as pb

__all__ = [
    "allocate",
    "commit",
    "duration",
    "end_session",
    "fork",
    "free",
    "grow",
    "swap_in",
    "swap_out",
    "timing",
    "update_activity",
]


def allocate(
    sequence: int,
    token_count: int,
    *,
    block_keys: Sequence[bytes] = (),
    session: str = "",
    turn: int = 0,
    priority: int = 0,
    known_blocks: int = 0,
    tenant: str = "",
) -> pb.Operation:
    """`known_blocks`: what `tables.table(sequence)` holds already, so that the answer need not repeat it."""
    # Filled in place: most operations are these, and a message put into another is copied.
    operation = pb.Operation()
    request = operation.allocate
    request.sequence = sequence
    request.token_count = token_count
    if block_keys:
        request.block_keys.extend(block_keys)
    if known_blocks:
        request.known_blocks = known_blocks
    if session:
        request.session = session
    if turn:
        request.turn = turn
    if priority:
        request.priority = priority
    if tenant:
        request.tenant = tenant
    return operation


def grow(sequences: Sequence[int], token_counts: Sequence[int], known_blocks: Sequence[int]) -> pb.Operation:
    """Room for more tokens of sequences that run, in columns of one length: an Allocate of each.

    `known_blocks` as for `allocate`; one that has none yet is better allocated.
    """
    if not len(sequences) == len(token_counts) == len(known_blocks):
        raise ValueError(
            f"{len(sequences)} sequences, {len(token_counts)} token counts and {len(known_blocks)} known "
            "blocks: they must be as many"
        )
    operation = pb.Operation()
    request = operation.grow
    request.sequences.extend(sequences)
    request.token_counts.extend(token_counts)
    request.known_blocks.extend(known_blocks)
    return operation


def fork(parent: int, children: Sequence[int]) -> pb.Operation:
    return pb.Operation(fork=pb.ForkRequest(parent=parent, children=children))


def swap_in(sequence: int) -> pb.Operation:
    return pb.Operation(swap=pb.SwapRequest(sequence=sequence, direction=pb.SwapRequest.IN))


def swap_out(
    sequence: int, filled_tokens: int, mode: pb.SwapRequest.Mode.ValueType = pb.SwapRequest.AUTO
) -> pb.Operation:
    request = pb.SwapRequest(
        sequence=sequence, direction=pb.SwapRequest.OUT, mode=mode, filled_tokens=filled_tokens
    )
    return pb.Operation(swap=request)


def free(
    sequences: Sequence[int],
    retention: pb.FreeRequest.Retention.ValueType = pb.FreeRequest.RETENTION_UNSPECIFIED,
) -> pb.Operation:
    return pb.Operation(free=pb.FreeRequest(sequences=sequences, retention=retention))


def commit(sequence: int, first_block: int, block_keys: Sequence[bytes]) -> pb.Operation:
    request = pb.CommitRequest(sequence=sequence, first_block=first_block, block_keys=block_keys)
    return pb.Operation(commit=request)


def update_activity(
    sequence: int,
    activity: pb.Activity.ValueType,
    *,
    filled_tokens: int = 0,
    resume_seconds: float | None = None,
) -> pb.Operation:
    """`resume_seconds` None: when it will run again is not known."""
    request = pb.UpdateActivityRequest(sequence=sequence, activity=activity, filled_tokens=filled_tokens)
    if resume_seconds is not None:
        request.resume_delay.CopyFrom(duration(resume_seconds))
    return pb.Operation(update_activity=request)


def end_session(session: str, tenant: str = "") -> pb.Operation:
    return pb.Operation(end_session=pb.EndSessionRequest(session=session, tenant=tenant))


def timing(
    step: int,
    seconds: float,
    *,
    prefilled: Sequence[tuple[int, int]] = (),
    decoded: Sequence[int] = (),
) -> pb.StepTiming:
    """How long a step's work took, to be told with a later one.

    `prefilled`: of each piece how many tokens stood before it, and how many it had; `decoded`: of each
    sequence that got one token, the length of its context.
    """
    return pb.StepTiming(
        step=step,
        prefill_tokens=sum(count for _, count in prefilled),
        prefill_context=sum(before * count + count * count // 2 for before, count in prefilled),
        decode_sequences=len(decoded),
        decode_context=sum(decoded),
        # What took less than a clock can tell still took something.
        elapsed=duration(max(seconds, 1e-6)),
    )


def duration(seconds: float) -> duration_pb2.Duration:
    """In whole microseconds: a clock tells no more, and a float holds no more."""
    value = duration_pb2.Duration()
    value.FromMicroseconds(round(seconds * 1e6))
    return value
