"""What all methods of the contract share: bytes in, bytes out, refusals and bugs as statuses.

Handlers get bytes, and not messages that gRPC has made: so the size of a message is known for nothing, and
bytes that are no message are refused as whatever else is wrong with a request.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from time import perf_counter
from typing import NoReturn, TypeAlias, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from kvstore.core.errors import CheckFailed, FieldInvalid, KVStoreError
from kvstore.server.errors import TooManyStreams, status_of

__all__ = [
    "MESSAGE_BYTES_MAX",
    "STREAMS_MAX",
    "Handler",
    "Stopped",
    "Streams",
    "Unknown",
    "answering",
    "streaming",
    "waiting",
    "watching",
]

MESSAGE_BYTES_MAX = 64 << 20
# An engine needs one.
STREAMS_MAX = 1_024

Request = TypeVar("Request", bound=Message)
Handler: TypeAlias = "grpc.RpcMethodHandler[bytes, bytes]"
Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
# Told the seconds from a request's bytes to those of its answer.
Took = Callable[[float], None]

log = logging.getLogger(__name__)


def answering(kind: type[Request], method: Callable[[Request], Message], took: Took | None = None) -> Handler:
    """A method that answers at once. `took` is told how long each answer took."""
    answer = _in_bytes(kind, method, took)

    async def call(data: bytes, context: Context) -> bytes:
        try:
            return answer(data)
        except Exception as error:
            await _refuse(context, error)

    return grpc.unary_unary_rpc_method_handler(call)


def waiting(kind: type[Request], method: Callable[[Request], Awaitable[Message]]) -> Handler:
    """A method that may have to wait for its answer."""

    async def call(data: bytes, context: Context) -> bytes:
        try:
            return (await method(_parse(kind, data))).SerializeToString()
        except Exception as error:
            await _refuse(context, error)

    return grpc.unary_unary_rpc_method_handler(call)


def watching(kind: type[Request], method: Callable[[Request], AsyncGenerator[Message, None]]) -> Handler:
    """A method that answers with a stream, which its caller ends, or the stop."""

    async def call(data: bytes, context: Context) -> None:
        try:
            async with aclosing(method(_parse(kind, data))) as messages:
                async for message in messages:
                    await context.write(message.SerializeToString())
        except Exception as error:
            await _refuse(context, error)

    return grpc.unary_stream_rpc_method_handler(call)


def streaming(
    kind: type[Request],
    method: Callable[[Request], Message],
    streams: "Streams",
    took: Took | None = None,
) -> Handler:
    """A method that answers at once, on a stream of calls. A refusal ends the stream with its status.

    A request is read when the one before is answered: what was sent ahead waits in gRPC, which bounds it.
    """
    answer = _in_bytes(kind, method, took)

    async def call(_: AsyncIterator[bytes], context: Context) -> None:
        try:
            with streams.place():
                while (data := await streams.read(context)) is not None:
                    await context.write(answer(data))
        except Exception as error:
            await _refuse(context, error)

    return grpc.stream_stream_rpc_method_handler(call)


class Streams:
    """Those that wait for their next request. They have no deadline, so a stop has to end them.

    They are fewer than there may be calls, so that nobody's streams keep the calls of others out.
    """

    def __init__(self) -> None:
        self._open = 0
        self._reading: set[asyncio.Task[None] | None] = set()
        self._closed = False

    @contextmanager
    def place(self) -> Iterator[None]:
        if self._open >= STREAMS_MAX:
            remedy = "end one, or send steps by unary calls"
            raise TooManyStreams(f"{STREAMS_MAX} streams are open already", remedy=remedy)
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1

    async def read(self, context: Context) -> bytes | None:
        """None: the caller sends no more."""
        if self._closed:
            raise Stopped
        task = asyncio.current_task()
        self._reading.add(task)
        try:
            # Bytes, as the types have it, or at the end gRPC's EOF.
            data: object = await context.read()
        except asyncio.CancelledError:
            if self._closed:
                raise Stopped from None
            raise  # The caller has gone.
        finally:
            self._reading.discard(task)
        return data if isinstance(data, bytes) else None

    def close(self) -> None:
        """A step that is being answered is answered first."""
        self._closed = True
        for task in self._reading:
            if task is not None:
                task.cancel()


class Stopped(Exception):
    """The service is about to end, and with it a stream."""


class Unknown(Exception):
    """What was asked for is not here; of protocols that aren't ours, without an ErrorInfo."""


# What isn't a refusal by the store has no ErrorInfo.
PLAIN = {
    Unknown: grpc.StatusCode.NOT_FOUND,
    Stopped: grpc.StatusCode.UNAVAILABLE,
}


async def _refuse(context: Context, error: Exception) -> NoReturn:
    code = PLAIN.get(type(error))
    if code is not None:
        await context.abort(code, str(error) or "the service is stopping")
    await context.abort_with_status(_status(error))


def _in_bytes(
    kind: type[Request], method: Callable[[Request], Message], took: Took | None
) -> Callable[[bytes], bytes]:
    def answer(data: bytes) -> bytes:
        return method(_parse(kind, data)).SerializeToString()

    def answer_timed(data: bytes) -> bytes:
        begin = perf_counter()
        answered = method(_parse(kind, data)).SerializeToString()
        told(perf_counter() - begin)
        return answered

    if took is None:
        return answer
    told = took
    return answer_timed


def _parse(kind: type[Request], data: bytes) -> Request:
    if len(data) > MESSAGE_BYTES_MAX:
        remedy = f"at most {MESSAGE_BYTES_MAX} bytes a message; split the step"
        raise FieldInvalid("too large", field="request", value=f"{len(data)} bytes", remedy=remedy)
    try:
        return kind.FromString(data)
    except DecodeError as error:
        remedy = f"send a {kind.DESCRIPTOR.full_name}"
        raise FieldInvalid(f"not a message: {error}", field="request", remedy=remedy) from None


def _status(error: Exception) -> grpc.Status:
    """What is neither a refusal nor a bug that the core has found is a bug of this shell."""
    if isinstance(error, KVStoreError | CheckFailed):
        return status_of(error)
    log.error("a call failed", exc_info=error)
    return status_of(CheckFailed(f"{type(error).__name__}: {error}"))
