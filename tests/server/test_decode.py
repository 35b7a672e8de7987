"""Requests become events; what the core can't see is refused by its path."""

import uuid
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from kvstore.core.calls import Detach, KeepAlive, Lookup
from kvstore.core.errors import FieldInvalid
from kvstore.core.operations import Allocate, Commit, EndSession, Fork, Free, Swap, UpdateActivity
from kvstore.core.types import (
    Activity,
    BlockKey,
    Direction,
    Retention,
    Revision,
    SequenceId,
    StepNumber,
    SwapMode,
)
from kvstore.server.decode import decode_attach, decode_detach, decode_keep_alive, decode_lookup
from kvstore.server.decode_step import decode_allocate, decode_single, decode_step
from kvstore.v1 import kvstore_pb2 as pb
from tests.server.messages import ENGINE, NAME

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
