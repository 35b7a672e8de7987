"""Requests become events, answers become messages, and what the core can't see is refused by its path."""

import time
import uuid
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from kvstore.core.answers import FrameCopy, KeepAliveAnswer, LookupAnswer, StepAnswer
from kvstore.core.calls import Detach, KeepAlive, Lookup
from kvstore.core.errors import FieldInvalid
from kvstore.core.notices import PressureChanged, SequenceMoved
from kvstore.core.operations import (
    Allocate,
    AllocateResult,
    Commit,
    CommitResult,
    Decision,
    EndSession,
    EndSessionResult,
    Fork,
    ForkResult,
    Free,
    FreeResult,
    Result,
    Swap,
    SwapResult,
    UpdateActivity,
    UpdateActivityResult,
)
from kvstore.core.types import (
    Activity,
    BlockKey,
    Direction,
    EngineId,
    EngineState,
    Frame,
    Outcome,
    Pressure,
    Retention,
    Revision,
    SequenceId,
    SequenceState,
    StepNumber,
    SwapMode,
    Tier,
)
from kvstore.core.usage import EngineUsage, TierUsage, Usage
from kvstore.observe.counting import Counts
from kvstore.server import clock
from kvstore.server.decode import decode_attach, decode_detach, decode_keep_alive, decode_lookup
from kvstore.server.decode_step import decode_allocate, decode_single, decode_step
from kvstore.server.encode import encode_keep_alive, encode_lookup, encode_step
from kvstore.server.encode_usage import Facts, encode_usage
from kvstore.v1 import kvstore_pb2 as pb

ENGINE = EngineId("01234567-89ab-4cde-8f01-23456789abcd")
NAME = f"engines/{ENGINE}"
KEYS = (BlockKey(b"a" * 32), BlockKey(b"b" * 32))


def step(*operations: pb.Operation) -> pb.StepRequest:
    return pb.StepRequest(engine=NAME, step=7, completed_step=5, operations=operations)


def attach(**fields) -> pb.AttachRequest:
    layout = pb.BlockLayout(block_tokens=16, block_bytes=4096, ranks=2, fingerprint=b"f" * 32)
    given: dict[str, Any] = {"request_id": str(uuid.uuid4()), "layout": layout, "build": "test 1"}
    return pb.AttachRequest(**(given | fields))


# --------------------------------------------------------------------- requests to events


def test_a_step_of_every_operation_is_decoded_field_by_field() -> None:
    request = step(
        pb.Operation(
            allocate=pb.AllocateRequest(
                sequence=2**64 - 1,
                token_count=33,
                block_keys=KEYS,
                session="chat",
                turn=3,
                priority=-1,
                known_blocks=1,
                tenant="ann",
            )
        ),
        pb.Operation(fork=pb.ForkRequest(parent=1, children=[2, 3])),
        pb.Operation(
            swap=pb.SwapRequest(
                sequence=1, direction=pb.SwapRequest.OUT, mode=pb.SwapRequest.KEEP, filled_tokens=9
            )
        ),
        pb.Operation(free=pb.FreeRequest(sequences=[4, 5], retention=pb.FreeRequest.SESSION)),
        pb.Operation(commit=pb.CommitRequest(sequence=1, first_block=2, block_keys=KEYS)),
        pb.Operation(
            update_activity=pb.UpdateActivityRequest(
                sequence=1, activity=pb.ACTIVITY_PARKED, resume_delay=Duration(seconds=1, nanos=500_000_000)
            )
        ),
        pb.Operation(end_session=pb.EndSessionRequest(session="chat", tenant="ann")),
    )
    event = decode_step(request, 12.5)
    assert (event.time, event.engine, event.step, event.completed_step) == (12.5, ENGINE, 7, 5)
    assert event.operations == (
        Allocate(
            sequence=SequenceId(2**64 - 1),
            token_count=33,
            block_keys=KEYS,
            session="chat",
            turn=3,
            priority=-1,
            known_blocks=1,
            tenant="ann",
        ),
        Fork(parent=SequenceId(1), children=(SequenceId(2), SequenceId(3))),
        Swap(sequence=SequenceId(1), direction=Direction.OUT, mode=SwapMode.KEEP, filled_tokens=9),
        Free(sequences=(SequenceId(4), SequenceId(5)), retention=Retention.SESSION),
        Commit(sequence=SequenceId(1), first_block=2, block_keys=KEYS),
        UpdateActivity(sequence=SequenceId(1), activity=Activity.PARKED, resume_delay_seconds=1.5),
        EndSession(session="chat", tenant="ann"),
    )


def test_unset_fields_take_the_core_defaults() -> None:
    request = step(
        pb.Operation(swap=pb.SwapRequest(sequence=1, direction=pb.SwapRequest.IN)),
        pb.Operation(free=pb.FreeRequest(sequences=[4])),
        pb.Operation(update_activity=pb.UpdateActivityRequest(sequence=1, activity=pb.ACTIVITY_WAITING)),
    )
    swap, free, activity = decode_step(request, 0.0).operations
    assert swap == Swap(sequence=SequenceId(1), direction=Direction.IN)
    assert free == Free(sequences=(SequenceId(4),))
    assert activity == UpdateActivity(sequence=SequenceId(1), activity=Activity.WAITING)


def test_calls_outside_a_step() -> None:
    request = pb.KeepAliveRequest(name=NAME, completed_step=4, wait=Duration(seconds=2), seen_revision=9)
    event, wait = decode_keep_alive(request, 1.0)
    assert wait == 2.0
    assert event == KeepAlive(
        time=1.0, engine=ENGINE, completed_step=StepNumber(4), seen_revision=Revision(9)
    )
    assert decode_detach(pb.DetachRequest(name=NAME), 1.0) == Detach(time=1.0, engine=ENGINE)
    lookup = decode_lookup(pb.LookupRequest(engine=NAME, tenant="ann", block_keys=KEYS), 1.0)
    assert lookup == Lookup(time=1.0, engine=ENGINE, block_keys=KEYS, tenant="ann")
    allocate = decode_allocate(pb.AllocateRequest(engine=NAME, sequence=1, token_count=5))
    assert decode_single(NAME, allocate, 1.0).operation == allocate


def test_attach_is_decoded() -> None:
    request = attach(lease=Duration(seconds=3))
    request.layout.description["model"] = "tiny"
    call = decode_attach(request)
    assert (call.request_id, call.build, call.lease_seconds) == (request.request_id, "test 1", 3.0)
    assert call.layout.sizes == (16, 4096, 2)
    assert call.layout.description == {"model": "tiny"}
    assert decode_attach(attach()).lease_seconds == 0.0


# ------------------------------------------------------------------------------- refusals

LONG = "x" * 257
REFUSED_OPERATIONS = {
    "operations[1]": pb.Operation(),
    "operations[1].allocate.block_keys[1]": pb.Operation(
        allocate=pb.AllocateRequest(sequence=1, token_count=1, block_keys=[b"a" * 32, b"short"])
    ),
    "operations[1].allocate.session": pb.Operation(allocate=pb.AllocateRequest(session=LONG)),
    "operations[1].allocate.tenant": pb.Operation(allocate=pb.AllocateRequest(tenant=LONG)),
    "operations[1].allocate.engine": pb.Operation(allocate=pb.AllocateRequest(engine=NAME)),
    "operations[1].fork.children": pb.Operation(fork=pb.ForkRequest(parent=1, children=range(65))),
    "operations[1].fork.engine": pb.Operation(fork=pb.ForkRequest(engine=NAME)),
    "operations[1].swap.direction": pb.Operation(swap=pb.SwapRequest(sequence=1)),
    "operations[1].swap.mode": pb.Operation(
        swap=pb.SwapRequest(sequence=1, direction=pb.SwapRequest.OUT, mode=9)  # type: ignore[arg-type]
    ),
    "operations[1].swap.engine": pb.Operation(swap=pb.SwapRequest(engine=NAME)),
    "operations[1].free.sequences": pb.Operation(free=pb.FreeRequest(sequences=range(4097))),
    "operations[1].free.retention": pb.Operation(
        free=pb.FreeRequest(retention=9)  # type: ignore[arg-type]
    ),
    "operations[1].free.engine": pb.Operation(free=pb.FreeRequest(engine=NAME)),
    "operations[1].commit.block_keys[0]": pb.Operation(commit=pb.CommitRequest(block_keys=[b""])),
    "operations[1].commit.engine": pb.Operation(commit=pb.CommitRequest(engine=NAME)),
    "operations[1].update_activity.activity": pb.Operation(
        update_activity=pb.UpdateActivityRequest(sequence=1)
    ),
    "operations[1].update_activity.resume_delay": pb.Operation(
        update_activity=pb.UpdateActivityRequest(
            sequence=1, activity=pb.ACTIVITY_PARKED, resume_delay=Duration(seconds=-1)
        )
    ),
    "operations[1].end_session.session": pb.Operation(end_session=pb.EndSessionRequest()),
    "operations[1].end_session.tenant": pb.Operation(
        end_session=pb.EndSessionRequest(session="s", tenant=LONG)
    ),
}


@pytest.mark.parametrize("field", REFUSED_OPERATIONS)
def test_an_operation_is_refused_by_its_path(field: str) -> None:
    good = pb.Operation(free=pb.FreeRequest(sequences=[1]))
    with pytest.raises(FieldInvalid) as refused:
        decode_step(step(good, REFUSED_OPERATIONS[field]), 0.0)
    assert refused.value.field == field
    assert refused.value.remedy


def test_a_step_has_a_bound() -> None:
    operations = [pb.Operation(free=pb.FreeRequest())] * 4097
    with pytest.raises(FieldInvalid) as refused:
        decode_step(step(*operations), 0.0)
    assert (refused.value.field, refused.value.value) == ("operations", "4097")


@pytest.mark.parametrize(
    "name", ["", "engines/", ENGINE, f"engine/{ENGINE}", f"{NAME}/x", NAME + "\n", NAME.upper()]
)
def test_names_of_engines_have_one_form(name: str) -> None:
    for decode in (
        lambda: decode_step(pb.StepRequest(engine=name), 0.0),
        lambda: decode_keep_alive(pb.KeepAliveRequest(name=name), 0.0),
        lambda: decode_detach(pb.DetachRequest(name=name), 0.0),
        lambda: decode_lookup(pb.LookupRequest(engine=name), 0.0),
        lambda: decode_single(name, Free(sequences=()), 0.0),
    ):
        with pytest.raises(FieldInvalid) as refused:
            decode()
        assert refused.value.value == name


def layout(**fields) -> pb.BlockLayout:
    given: dict[str, Any] = {"block_tokens": 16, "block_bytes": 4096, "ranks": 1, "fingerprint": b"f" * 32}
    return pb.BlockLayout(**(given | fields))


@pytest.mark.parametrize(
    ("field", "request_"),
    [
        ("request_id", attach(request_id="")),
        ("request_id", attach(request_id="not a uuid")),
        ("request_id", attach(request_id=str(uuid.uuid1()))),
        ("request_id", attach(request_id="{" + str(uuid.uuid4()) + "}")),
        ("layout", attach(layout=None)),
        ("layout.block_tokens", attach(layout=layout(block_tokens=0))),
        ("layout.block_bytes", attach(layout=layout(block_bytes=0))),
        ("layout.block_bytes", attach(layout=layout(block_bytes=2**62))),
        ("layout.ranks", attach(layout=layout(ranks=0))),
        ("layout.ranks", attach(layout=layout(ranks=65))),
        ("layout.fingerprint", attach(layout=layout(fingerprint=b"f" * 31))),
        ("layout.description", attach(layout=layout(description={"k": "v" * 4096}))),
        ("build", attach(build="é" * 65)),
        ("lease", attach(lease=Duration(seconds=0))),
        ("lease", attach(lease=Duration(seconds=-5))),
    ],
)
def test_attach_is_refused_by_its_path(field: str, request_: pb.AttachRequest) -> None:
    with pytest.raises(FieldInvalid) as refused:
        decode_attach(request_)
    assert refused.value.field == field
    assert refused.value.remedy


def test_a_wait_is_not_negative() -> None:
    with pytest.raises(FieldInvalid, match="wait"):
        decode_keep_alive(pb.KeepAliveRequest(name=NAME, wait=Duration(nanos=-1)), 0.0)


# --------------------------------------------------------------------- answers to messages


def test_a_step_answer_of_every_result_is_encoded() -> None:
    results: tuple[Result, ...] = (
        AllocateResult(
            outcome=Outcome.OK,
            state=SequenceState.SWAPPING_IN,
            cached_tokens=48,
            block_table=(Frame(5), Frame(0)),
            first_block=2,
            frames_short=1,
            tier_tokens=(16, 32, 0),
        ),
        ForkResult(outcome=Outcome.LATER),
        SwapResult(
            outcome=Outcome.OK,
            state=SequenceState.SWAPPING_OUT,
            block_table=(Frame(1),),
            valid_tokens=3,
            frames_short=2,
            decision=Decision(time=1.0, kind="swap_out", chosen="keep", inputs=(("tokens", 9.0),)),
        ),
        FreeResult(),
        CommitResult(),
        UpdateActivityResult(outcome=Outcome.NEVER, state=SequenceState.DROPPED),
        EndSessionResult(),
    )
    moved = SequenceMoved(
        engine=ENGINE,
        revision=Revision(8),
        sequence=SequenceId(1),
        state=SequenceState.RESIDENT,
        block_table=(Frame(4),),
        valid_tokens=16,
    )
    pressure = PressureChanged(revision=Revision(9), tier=Tier.GPU, pressure=Pressure.FULL)
    answer = StepAnswer(
        step=StepNumber(7),
        results=results,
        copies=(FrameCopy(source=Frame(1), target=Frame(2)),),
        revision=Revision(9),
        notices=(moved, pressure),
        lease_expire_time=clock.now(),
    )
    message = encode_step(ENGINE, answer)
    allocate = message.results[0].allocate
    assert (allocate.outcome, allocate.state) == (pb.OUTCOME_OK, pb.Sequence.SWAPPING_IN)
    assert (list(allocate.block_table), allocate.first_block, allocate.frames_short) == ([5, 0], 2, 1)
    tokens = (allocate.cached_tokens, allocate.gpu_tokens, allocate.cpu_tokens, allocate.disk_tokens)
    assert tokens == (48, 16, 32, 0)
    swap = message.results[2].swap
    assert (swap.valid_tokens, swap.frames_short, swap.decision.chosen) == (3, 2, "keep")
    assert swap.decision.inputs == {"tokens": 9.0}
    kinds = [result.WhichOneof("kind") for result in message.results]
    assert kinds == ["allocate", "fork", "swap", "free", "commit", "update_activity", "end_session"]
    assert message.results[5].update_activity.outcome == pb.OUTCOME_NEVER
    assert [(copy.source, copy.target) for copy in message.copies] == [(1, 2)]
    assert [event.WhichOneof("kind") for event in message.events.events] == [
        "sequence_moved",
        "pressure_changed",
    ]
    assert message.events.events[0].sequence_moved.engine == NAME
    assert message.events.events[1].pressure_changed.tier == pb.TIER_GPU
    assert message.events.revision == 9


def test_core_enums_and_the_contract_agree() -> None:
    """The core says that its numbers are the contract's; the tables must say the same."""
    for state in SequenceState:
        assert pb.Sequence.State.Name(state.value) == state.name  # type: ignore[arg-type]
    for outcome in Outcome:
        assert pb.Outcome.Name(outcome.value) == f"OUTCOME_{outcome.name}"  # type: ignore[arg-type]


def test_times_on_the_wall_follow_the_monotonic_clock() -> None:
    lease = clock.timestamp(clock.now() + 10).ToNanoseconds() - clock.timestamp(clock.now()).ToNanoseconds()
    assert abs(lease - 10e9) < 1e9


def test_a_moment_is_the_same_timestamp_again(monkeypatch: pytest.MonkeyPatch) -> None:
    before = clock.timestamp(123.456)
    wall = time.time_ns()
    monkeypatch.setattr("time.time_ns", lambda: wall + 3_600_000_000_000)
    assert clock.timestamp(123.456).SerializeToString() == before.SerializeToString()
    # What engines compare with the wall clock is by that clock as it is.
    later = clock.timestamp_today(123.456).ToNanoseconds() - before.ToNanoseconds()
    assert abs(later - 3600e9) < 10e9


def test_keep_alive_and_lookup_answers() -> None:
    answer = KeepAliveAnswer(
        state=EngineState.EXPIRED, lease_expire_time=clock.now(), revision=Revision(3), notices=()
    )
    message = encode_keep_alive(ENGINE, answer, 2**64 - 1)
    assert (message.engine.name, message.engine.state) == (NAME, pb.Engine.EXPIRED)
    assert (message.engine.store_epoch, message.events.revision) == (2**64 - 1, 3)
    lookup = encode_lookup(LookupAnswer(blocks_cached=3, blocks_by_tier=(1, 0, 2)))
    assert (lookup.blocks_cached, dict(lookup.blocks_by_tier)) == (3, {"gpu": 1, "disk": 2})


def test_usage_is_encoded() -> None:
    tier = TierUsage(
        tier=Tier.DISK,
        frames_total=1,
        frames_free=2,
        frames_cached=3,
        frames_pinned=4,
        frames_quarantined=5,
        pressure=Pressure.HIGH,
        blocks_moved_in=6,
        blocks_failed=7,
        blocks_evicted=8,
    )
    engine = EngineUsage(
        engine=ENGINE,
        state=EngineState.EXPIRED,
        lease_expire_time=clock.now(),
        build="b",
        sequences=1,
        frames_quarantined=2,
        pids=(3, 4),
    )
    usage = Usage(revision=Revision(1), tiers=(tier,), engines=(engine,))
    message = encode_usage(usage, Counts(), Facts(store_epoch=5, build="b", start_wall=1.5))
    assert (message.revision, message.store_epoch) == (1, 5)
    [told] = message.tiers
    assert (told.tier, told.pressure) == (pb.TIER_DISK, pb.PRESSURE_HIGH)
    counts = [told.frames_total, told.frames_free, told.frames_cached, told.frames_pinned]
    moves = [told.frames_quarantined, told.blocks_moved_in, told.blocks_failed, told.blocks_evicted]
    assert counts + moves == [1, 2, 3, 4, 5, 6, 7, 8]
    assert list(message.engines[0].peer_pids) == [3, 4]
