"""Refusals as gRPC statuses: the one table of codes, and google.rpc.ErrorInfo around it.

The codes are those that the contract's comments name. A bug in the store is INTERNAL; what a refusal of the
start-up or of a command (CONFIG_INVALID, DISK_INVALID, JOURNAL_INVALID, TRACE_INVALID) would be on the wire
is here for completeness: the service doesn't come up with one.
"""

from collections.abc import Mapping

import grpc
from google.protobuf.any_pb2 import Any
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from kvstore.core.errors import CheckFailed, KVStoreError

__all__ = ["CODES", "DOMAIN", "TooManyStreams", "status_of"]

DOMAIN = "kvstore"


class TooManyStreams(KVStoreError):
    """The one refusal that is not the store's: it knows of no streams."""

    reason = "TOO_MANY_STREAMS"


CODES: Mapping[str, grpc.StatusCode] = {
    "FIELD_INVALID": grpc.StatusCode.INVALID_ARGUMENT,
    "STEP_CHANGED": grpc.StatusCode.INVALID_ARGUMENT,
    "ENGINE_EXPIRED": grpc.StatusCode.NOT_FOUND,
    "SEQUENCE_UNKNOWN": grpc.StatusCode.NOT_FOUND,
    "STEP_GAP": grpc.StatusCode.FAILED_PRECONDITION,
    "STEP_MIXED": grpc.StatusCode.FAILED_PRECONDITION,
    "LAYOUT_MISMATCH": grpc.StatusCode.FAILED_PRECONDITION,
    "DRAINING": grpc.StatusCode.FAILED_PRECONDITION,
    "REVISION_COMPACTED": grpc.StatusCode.OUT_OF_RANGE,
    "STORE_NOT_MADE": grpc.StatusCode.FAILED_PRECONDITION,
    "TENANT": grpc.StatusCode.PERMISSION_DENIED,
    "TOO_MANY_ENGINES": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "TOO_MANY_FORGETS": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "TOO_MANY_STREAMS": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "POOL_QUARANTINED": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "POOL_UNAVAILABLE": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "CONFIG_INVALID": grpc.StatusCode.FAILED_PRECONDITION,
    "DISK_INVALID": grpc.StatusCode.FAILED_PRECONDITION,
    "JOURNAL_INVALID": grpc.StatusCode.FAILED_PRECONDITION,
    "TRACE_INVALID": grpc.StatusCode.FAILED_PRECONDITION,
}

# A status travels in HTTP/2 headers, of which clients take 8 KiB: all texts in base64, and the message
# once more, of which each byte may become three (`%F0`).
MESSAGE_BYTES_MAX = 1_000
FIELD_BYTES_MAX = 256
VALUE_BYTES_MAX = 256
REMEDY_BYTES_MAX = 512
CUT = " …"


def status_of(error: KVStoreError | CheckFailed) -> grpc.Status:
    """What to abort the call with. For tools the cause is in the ErrorInfo, for people in the text."""
    if isinstance(error, KVStoreError):
        code, text, info = CODES[error.reason], _text(error), _info(error)
    else:
        code, text = grpc.StatusCode.INTERNAL, str(error)
        info = ErrorInfo(reason="CHECK_FAILED", domain=DOMAIN)
    detail = Any()
    detail.Pack(info)
    # A StatusCode's value is a pair of its number and its name.
    number: int = code.value[0]
    status: grpc.Status = rpc_status.to_status(
        Status(code=number, message=_shortened(text, MESSAGE_BYTES_MAX), details=[detail])
    )
    return status


def _info(error: KVStoreError) -> ErrorInfo:
    texts = {
        "field": _shortened(error.field, FIELD_BYTES_MAX),
        "value": _shortened(error.value, VALUE_BYTES_MAX),
        "remedy": _shortened(error.remedy, REMEDY_BYTES_MAX),
    }
    # Without a field there is no value either; a field's value may well be the empty text.
    told = {name: text for name, text in texts.items() if text or (name == "value" and error.field)}
    return ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=told)


def _text(error: KVStoreError) -> str:
    """The error's own words, but a long value does not push out what is wrong with it."""
    field, value = _shortened(error.field, FIELD_BYTES_MAX), _shortened(error.value, VALUE_BYTES_MAX)
    return str(KVStoreError(error.message, field=field, value=value, remedy=error.remedy))


def _shortened(text: str, bytes_max: int) -> str:
    """At most so many bytes of UTF-8, and no part of a character."""
    encoded = text.encode(errors="replace")
    if len(encoded) <= bytes_max:
        return encoded.decode()
    return encoded[: bytes_max - len(CUT.encode())].decode(errors="ignore") + CUT
