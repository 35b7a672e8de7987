"""What a call ended with, in gRPC's words, as an error of the client."""

import errno
import os
import stat
from pathlib import Path

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from kvstore.client.errors import ClientError, Refused, ServiceLost, Unanswered

__all__ = ["UNANSWERED", "from_rpc", "too_late"]

ENGINE_EXPIRED = "ENGINE_EXPIRED"
UNANSWERED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


def from_rpc(error: grpc.RpcError, address: str) -> ClientError:
    code, message = error.code(), error.details() or ""
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return too_late(address)
    if code in UNANSWERED:
        why, remedy = _why_nobody(address)
        if not why and os.strerror(errno.ECONNREFUSED) in message:
            why = ": nobody listens there any more"
        return Unanswered(
            f"no service answers on {address}{why} ({remedy}): {code.name}" + (f": {message}" * (not why))
        )
    info = _error_info(error)
    if info.reason == ENGINE_EXPIRED:
        return ServiceLost(f"{ENGINE_EXPIRED}: {message}")
    return Refused(code, message, info.reason or code.name, dict(info.metadata))


def too_late(address: str) -> Unanswered:
    """Somebody listens: another service would not help, and could not have the socket."""
    return Unanswered(
        f"the service on {address} did not answer in time (it hangs, or has too much to do: see its log, "
        "and ask again): DEADLINE_EXCEEDED"
    )


def _why_nobody(address: str) -> tuple[str, str]:
    """What the file of the socket tells, and a remedy; nothing where it is as it should be."""
    path = Path(address.removeprefix("unix:"))
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return ": there is no such socket", "start one: kvstore serve"
    except OSError as error:
        return f": {error.strerror}", "name its socket, or be a user who may open it"
    if not stat.S_ISSOCK(mode):
        return ": it is no socket", "name that of a service, or start one: kvstore serve"
    if not os.access(path, os.R_OK | os.W_OK):
        return ": this user may not open it", "be the user who runs the service"
    return "", "start one: kvstore serve"


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
