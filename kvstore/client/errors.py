"""What can go wrong for an engine.

ClientError
├── Refused          the service refused the call, and nothing has changed
├── ServiceLost      the service, or this engine's place in it, is gone: attach again
│   └── Unanswered   no answer in time, so whether the call was carried out is unknown
├── ForkedChild      the client was used in a forked child
└── SharedTail       a slot was asked for that another sequence still shares

Want of memory is none of these: it is the `outcome` of an operation.
"""

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

__all__ = ["ClientError", "ForkedChild", "Refused", "ServiceLost", "SharedTail", "Unanswered", "from_rpc"]

ENGINE_EXPIRED = "ENGINE_EXPIRED"
UNANSWERED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


class ClientError(Exception):
    """Also raised itself, where the client was used in a way that cannot work."""


class Refused(ClientError):
    """`reason` is one of the contract's fixed words (or the gRPC code where the service gave none).

    The message is for people and says it all; `field`, `value` and `remedy` are for programs.
    """

    def __init__(self, code: grpc.StatusCode, message: str, reason: str, metadata: dict[str, str]) -> None:
        self.code = code
        self.reason = reason
        self.message = message
        self.field = metadata.get("field", "")
        self.value = metadata.get("value", "")
        self.remedy = metadata.get("remedy", "")
        super().__init__(f"{reason}: {message}")


class ServiceLost(ClientError):
    """The client has let go of all pools; their memory goes with the engine's last view of it. After the
    next attach everything is new: engine, epoch, pools, steps.

    Sequences are gone; what was committed may still be cached, so allocate it again by its keys.
    """


class Unanswered(ServiceLost):
    pass


class ForkedChild(ClientError):
    pass


class SharedTail(ClientError):
    pass


def from_rpc(error: grpc.RpcError, address: str) -> ClientError:
    code, message = error.code(), error.details() or ""
    if code in UNANSWERED:
        return Unanswered(
            f"no service answers on {address} (start one: kvstore serve): {code.name}: {message}"
        )
    info = _error_info(error)
    if info.reason == ENGINE_EXPIRED:
        return ServiceLost(f"{ENGINE_EXPIRED}: {message}")
    return Refused(code, message, info.reason or code.name, dict(info.metadata))


def _error_info(error: grpc.RpcError) -> error_details_pb2.ErrorInfo:
    """An empty one where the service sent none."""
    info = error_details_pb2.ErrorInfo()
    try:
        status = rpc_status.from_call(error)
    except ValueError:  # The details speak of another error than the call does: not ours.
        return info
    for detail in status.details if status else ():
        if detail.Unpack(info):
            break
    return info
