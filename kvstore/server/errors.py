"""Refusals as gRPC statuses: the one table of codes, and google.rpc.ErrorInfo around it.

The codes are those that the contract's comments name. A bug in the store is INTERNAL; what a
refusal of the start-up (CONFIG_INVALID, DISK_INVALID) would be on the wire is here for
completeness: the service doesn't come up with one.
"""

from collections.abc import Mapping

import grpc
from google.protobuf.any_pb2 import Any
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from kvstore.core.errors import CheckFailed, KVStoreError

__all__ = ["CODES", "DOMAIN", "status_of"]

DOMAIN = "kvstore"

CODES: Mapping[str, grpc.StatusCode] = {
    "FIELD_INVALID": grpc.StatusCode.INVALID_ARGUMENT,
    "STEP_CHANGED": grpc.StatusCode.INVALID_ARGUMENT,
    "ENGINE_EXPIRED": grpc.StatusCode.NOT_FOUND,
    "SEQUENCE_UNKNOWN": grpc.StatusCode.NOT_FOUND,
    "STEP_GAP": grpc.StatusCode.FAILED_PRECONDITION,
    "STEP_MIXED": grpc.StatusCode.FAILED_PRECONDITION,
    "LAYOUT_MISMATCH": grpc.StatusCode.FAILED_PRECONDITION,
    "TENANT": grpc.StatusCode.PERMISSION_DENIED,
    "TOO_MANY_ENGINES": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "POOL_QUARANTINED": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "POOL_UNAVAILABLE": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "CONFIG_INVALID": grpc.StatusCode.FAILED_PRECONDITION,
    "DISK_INVALID": grpc.StatusCode.FAILED_PRECONDITION,
}

# A status travels in HTTP/2 headers, of which clients take 8 KiB.
TEXT_MAX = 1_000


def status_of(error: KVStoreError | CheckFailed) -> grpc.Status:
    """What to abort the call with. For tools the cause is in the ErrorInfo, for people in the text."""
    if isinstance(error, KVStoreError):
        code, info = CODES[error.reason], _info(error)
    else:
        code, info = grpc.StatusCode.INTERNAL, ErrorInfo(reason="CHECK_FAILED", domain=DOMAIN)
    detail = Any()
    detail.Pack(info)
    # A StatusCode's value is a pair of its number and its name.
    number: int = code.value[0]
    status: grpc.Status = rpc_status.to_status(
        Status(code=number, message=_shortened(str(error)), details=[detail])
    )
    return status


def _info(error: KVStoreError) -> ErrorInfo:
    texts = {"field": error.field, "value": error.value, "remedy": error.remedy}
    # Without a field there is no value either; a field's value may well be the empty text.
    told = {
        name: _shortened(text) for name, text in texts.items() if text or (name == "value" and error.field)
    }
    return ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=told)


def _shortened(text: str) -> str:
    return text if len(text) <= TEXT_MAX else text[:TEXT_MAX] + " …"
