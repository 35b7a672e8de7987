"""The contract's methods: decode, ask the driver, encode. What they share is `_answering`."""

import functools
import logging
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from kvstore.core import effects, events
from kvstore.core.errors import CheckFailed, FieldInvalid, KVStoreError
from kvstore.server.clock import now
from kvstore.server.decode import decode_attach, decode_detach, decode_keep_alive, decode_lookup
from kvstore.server.decode_step import (
    decode_allocate,
    decode_commit,
    decode_fork,
    decode_free,
    decode_single,
    decode_step,
    decode_swap,
)
from kvstore.server.driver import Driver
from kvstore.server.encode import (
    encode_allocate,
    encode_attach,
    encode_copies,
    encode_fork,
    encode_keep_alive,
    encode_lookup,
    encode_step,
    encode_swap,
)
from kvstore.server.encode_usage import encode_usage
from kvstore.server.errors import status_of
from kvstore.v1 import kvstore_pb2 as pb
from kvstore.v1.kvstore_pb2_grpc import KVStoreServicer, add_KVStoreServicer_to_server

__all__ = ["make_server"]

MESSAGE_BYTES_MAX = 64 << 20
# Up to here a message that is too large gets our own answer; beyond it gRPC's, which names the limit too.
RECEIVE_BYTES_MAX = MESSAGE_BYTES_MAX + (16 << 20)
# Far more than the waiting KeepAlives of all engines, so a Free never queues behind them.
CALLS_MAX = 4_096

STEP_PREFIX = re.compile(r"operations\[0\]\.[a-z_]+\.")

OPTIONS = (
    ("grpc.max_receive_message_length", RECEIVE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    # Two services must not share a socket; and engines may ping an idle connection as they like.
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 0),
)

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)
Outcome = TypeVar("Outcome", bound=effects.Result)
Context = grpc.aio.ServicerContext

log = logging.getLogger(__name__)


def _in_one_line(record: logging.LogRecord) -> bool:
    """Bytes that are no message are their sender's fault; no trace leads to it."""
    if record.exc_info and isinstance(error := record.exc_info[1], DecodeError):
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        record.msg, record.args, record.exc_info = "refused a message: %s", (error,), None
    return True


# Also where one process makes several servers: the same filter is added once.
logging.getLogger("grpc._cython.cygrpc").addFilter(_in_one_line)


def make_server(driver: Driver, tether_path: Path) -> grpc.aio.Server:
    server = grpc.aio.server(options=OPTIONS, maximum_concurrent_rpcs=CALLS_MAX)
    add_KVStoreServicer_to_server(_Service(driver, tether_path), server)
    return server


def _answering(
    method: "Callable[[_Service, Request], Awaitable[Response]]",
) -> "Callable[[_Service, Request, Context[Request, Response]], Awaitable[Response]]":
    """Turns refusals and bugs into statuses; what is neither is a bug too, of this shell."""

    @functools.wraps(method)
    async def call(self: "_Service", request: Request, context: "Context[Request, Response]") -> Response:
        try:
            size = request.ByteSize()
            if size > MESSAGE_BYTES_MAX:
                remedy = f"at most {MESSAGE_BYTES_MAX} bytes a message; split the step"
                raise FieldInvalid("too large", field="request", value=f"{size} bytes", remedy=remedy)
            return await method(self, request)
        except (KVStoreError, CheckFailed) as error:
            await context.abort_with_status(status_of(error))
        except Exception as error:
            log.exception("%s failed", method.__name__)
            await context.abort_with_status(status_of(CheckFailed(f"{type(error).__name__}: {error}")))

    return call


class _Service(KVStoreServicer):
    def __init__(self, driver: Driver, tether_path: Path) -> None:
        self._driver = driver
        self._tether_path = tether_path

    @_answering
    async def Attach(self, request: pb.AttachRequest) -> pb.AttachResponse:
        attached = await self._driver.attach(decode_attach(request))
        return encode_attach(
            attached.answer,
            self._driver.store_epoch,
            gpu=attached.pools.gpu,
            tether_path=self._tether_path,
            secrets=attached.secrets,
        )

    @_answering
    async def KeepAlive(self, request: pb.KeepAliveRequest) -> pb.KeepAliveResponse:
        event, wait_seconds = decode_keep_alive(request, now())
        answer = await self._driver.keep_alive(event, wait_seconds)
        return encode_keep_alive(event.engine, answer, self._driver.store_epoch)

    @_answering
    async def Detach(self, request: pb.DetachRequest) -> pb.DetachResponse:
        self._driver.detach(decode_detach(request, now()))
        return pb.DetachResponse()

    @_answering
    async def Step(self, request: pb.StepRequest) -> pb.StepResponse:
        event = decode_step(request, now())
        return encode_step(event.engine, self._driver.ask(event, effects.StepAnswer))

    @_answering
    async def Allocate(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        result, answer = self._single(request.engine, decode_allocate(request), effects.AllocateResult)
        response = encode_allocate(result)
        response.copies.extend(encode_copies(answer.copies))
        return response

    @_answering
    async def Commit(self, request: pb.CommitRequest) -> pb.CommitResponse:
        self._single(request.engine, decode_commit(request), effects.CommitResult)
        return pb.CommitResponse()

    @_answering
    async def Fork(self, request: pb.ForkRequest) -> pb.ForkResponse:
        result, _ = self._single(request.engine, decode_fork(request), effects.ForkResult)
        return encode_fork(result)

    @_answering
    async def Swap(self, request: pb.SwapRequest) -> pb.SwapResponse:
        result, _ = self._single(request.engine, decode_swap(request), effects.SwapResult)
        return encode_swap(result)

    @_answering
    async def Free(self, request: pb.FreeRequest) -> pb.FreeResponse:
        self._single(request.engine, decode_free(request), effects.FreeResult)
        return pb.FreeResponse()

    @_answering
    async def Lookup(self, request: pb.LookupRequest) -> pb.LookupResponse:
        return encode_lookup(self._driver.ask(decode_lookup(request, now()), effects.LookupAnswer))

    @_answering
    async def GetUsage(self, request: pb.GetUsageRequest) -> pb.Usage:
        driver = self._driver
        return encode_usage(driver.usage(), driver.store_epoch, driver.tiers_degraded)

    def _single(
        self, engine: str, operation: events.Operation, kind: type[Outcome]
    ) -> tuple[Outcome, effects.StepAnswer]:
        """A Step of one operation. (A step's copies are an Allocate's; only that one answers with them.)"""
        try:
            answer = self._driver.ask(decode_single(engine, operation, now()), effects.StepAnswer)
        except KVStoreError as error:
            raise _outside_step(error) from error
        [result] = answer.results
        if not isinstance(result, kind):
            raise CheckFailed(f"{type(operation).__name__} was answered with {type(result).__name__}")
        return result, answer


def _outside_step(error: KVStoreError) -> KVStoreError:
    """The core names fields from the step on; a caller that sent an operation alone knows of no step."""
    field = STEP_PREFIX.sub("", error.field)
    return type(error)(error.message, field=field, value=error.value, remedy=error.remedy)
