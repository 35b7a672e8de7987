"""Each refusal has a code, and tools find its cause in the ErrorInfo."""

import grpc
import pytest
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from kvstore.core import errors
from kvstore.core.errors import CheckFailed, FieldInvalid, KVStoreError
from kvstore.server.errors import CODES, status_of

REFUSALS = KVStoreError.__subclasses__()


def info_of(status: grpc.Status) -> ErrorInfo:
    [(name, value)] = status.trailing_metadata
    assert name == "grpc-status-details-bin"
    info = ErrorInfo()
    [detail] = Status.FromString(value).details
    assert detail.Unpack(info)
    return info


def test_the_table_is_complete() -> None:
    assert {refusal.reason for refusal in REFUSALS} == set(CODES)
    assert len(REFUSALS) > 10


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_refusal_tells_reason_field_value_and_remedy(refusal: type[KVStoreError]) -> None:
    status = status_of(refusal("no good", field="step", value=3, remedy="send 4"))
    assert status.code is CODES[refusal.reason]
    assert status.details == "step = 3: no good (send 4)"
    info = info_of(status)
    assert (info.reason, info.domain) == (refusal.reason, "kvstore")
    assert dict(info.metadata) == {"field": "step", "value": "3", "remedy": "send 4"}


def test_what_does_not_apply_is_left_out() -> None:
    assert dict(info_of(status_of(errors.EngineExpired("gone"))).metadata) == {}
    told = info_of(status_of(FieldInvalid("empty", field="session"))).metadata
    assert dict(told) == {"field": "session", "value": ""}


def test_a_bug_is_internal() -> None:
    status = status_of(CheckFailed("row 3 has no frame"))
    assert status.code is grpc.StatusCode.INTERNAL
    assert info_of(status).reason == "CHECK_FAILED"


def test_long_values_fit_the_headers() -> None:
    status = status_of(
        FieldInvalid("m" * 10_000, field="f" * 10_000, value="v" * 10_000, remedy="r" * 10_000)
    )
    [(_, value)] = status.trailing_metadata
    assert len(value) + len(status.details) < 8_000


@pytest.mark.parametrize("character", ["😀", "é", "%", "\0"])
def test_texts_are_cut_by_the_bytes_that_travel(character: str) -> None:
    many = character * 1_000
    status = status_of(FieldInvalid(many, field=many, value=many, remedy=many))
    [(_, packed)] = status.trailing_metadata
    # The message percent-encoded, the details in base64.
    assert 3 * len(status.details.encode()) + 4 * len(packed) // 3 < 8_000
    told = info_of(status).metadata
    assert all(told[name].rstrip(" …") == character * len(told[name].rstrip(" …")) for name in told)
    assert [len(told[name].encode()) <= most for name, most in (("value", 256), ("remedy", 512))] == [
        True
    ] * 2


def test_a_long_value_does_not_push_out_what_is_wrong_with_it() -> None:
    assert (
        "(send less)"
        in status_of(FieldInvalid("no", field="f", value="😀" * 1_000, remedy="send less")).details
    )
