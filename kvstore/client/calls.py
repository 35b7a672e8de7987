"""The one channel to the service, and the rules of calling over it.

Every call has a deadline. Every method may be asked twice: attach by its request id, a step by its number,
the rest because they are idempotent. So a call that found no answer is made again, with the same bytes, by
this module and not by gRPC, which knows neither the bounds nor the tethers.
"""

import os
import threading
import time
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2_grpc

from kvstore.client import errors
from kvstore.client.statuses import from_rpc, too_late
from kvstore.v1 import kvstore_pb2 as pb
from kvstore.v1 import kvstore_pb2_grpc as rpc

__all__ = ["LargeCall", "Service", "Started", "is_large"]

MESSAGE_BYTES_MAX = 64 << 20
# Far below what a service that hangs takes: HTTP/2 sends 64 KiB unread, and a socket holds some 200.
SMALL_BYTES_MAX = 16 << 10
# gRPC's own deadline comes first where it can.
GRACE_SECONDS = 0.1
PAUSE_SECONDS_FIRST, PAUSE_SECONDS_MAX = 0.01, 0.25

# No HTTP/2 pings (gRPC's default): tethers tell sooner, and servers send pingers away (too_many_pings).
OPTIONS = (
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.enable_retries", 0),
    # A service that was started again is to be found within a second.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 250),
    # Otherwise the back-off of an older client in this process would be ours too.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)
# But for who watches: it has no tether, and there may be nothing to tell for hours.
WATCH_OPTIONS = (*OPTIONS, ("grpc.keepalive_time_ms", 10_000), ("grpc.keepalive_timeout_ms", 5_000))

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)
Answer = TypeVar("Answer", covariant=True)


class Started(Protocol[Answer]):
    """A call that is under way; its result raises what a call raises."""

    def result(self) -> Answer: ...


def is_large(request: Message) -> bool:
    return request.ByteSize() > SMALL_BYTES_MAX


class LargeCall(Generic[Response]):
    """A call that is under way. gRPC ends none, at its deadline neither, whose bytes it is still writing,
    and a service that hangs may hold that up for ever: so here we look at the time."""

    def __init__(
        self, method: "grpc.UnaryUnaryMultiCallable[Request, Response]", request: Request, timeout: float
    ) -> None:
        self._future = method.future(request, timeout=timeout)
        self._end = time.monotonic() + timeout + GRACE_SECONDS

    def result(self) -> Response:
        """Raises what a call does; FutureTimeoutError: it was too late, and gRPC has not noticed."""
        try:
            return self._future.result(timeout=max(0.0, self._end - time.monotonic()))
        except grpc.FutureTimeoutError:
            self._future.cancel()
            raise


class Service:
    def __init__(self, address: str, deadline_seconds: float) -> None:
        if not deadline_seconds > 0:
            raise ValueError(f"deadline_seconds must be above 0, not {deadline_seconds}")
        self.address = address
        self.deadline_seconds = deadline_seconds
        self._pid = os.getpid()
        self._channel = grpc.insecure_channel(address, options=OPTIONS)
        self.stub = rpc.KVStoreStub(self._channel)
        self.health = health_pb2_grpc.HealthStub(self._channel)
        self._is_closed = False

    @property
    def in_forked_child(self) -> bool:
        return os.getpid() != self._pid

    def check_process(self) -> None:
        """No thread, gRPC's or ours, lives on in a forked child: a call there could hang for ever."""
        if self.in_forked_child:
            raise errors.ForkedChild(
                f"this client belongs to process {self._pid}, not to its forked child {os.getpid()}; "
                "start children with 'spawn', and let each make a client of its own"
            )
        if self._is_closed:
            raise errors.ClientError("the client is closed: make a new one")

    def call(
        self,
        method: "grpc.UnaryUnaryMultiCallable[Request, Response]",
        request: Request,
        *,
        timeout: float,
        patience: float = 0.0,
        lost: threading.Event | None = None,
        started: Started[Response] | None = None,
    ) -> Response:
        """Asks until there is an answer, patience is at its end, or `lost` is set; `timeout` bounds each try.

        `started` is a first try that is under way.
        """
        lost = lost or threading.Event()
        deadline = time.monotonic() + patience
        pause = PAUSE_SECONDS_FIRST
        while True:
            try:
                if started is None and is_large(request):
                    started = LargeCall(method, request, timeout)
                return started.result() if started else method(request, timeout=timeout)
            except grpc.RpcError as error:
                problem = from_rpc(error, self.address)
            except grpc.FutureTimeoutError:
                problem = errors.Unanswered(f"the service on {self.address} takes no bytes: it hangs")
            except StopIteration:
                problem = errors.Unanswered(f"the service on {self.address} has ended the stream of steps")
            out_of_time = time.monotonic() + pause >= deadline
            if not isinstance(problem, errors.Unanswered) or out_of_time or lost.wait(pause):
                raise problem
            pause = min(2 * pause, PAUSE_SECONDS_MAX)
            started = None

    def watch(self, request: pb.WatchEventsRequest) -> Iterator[pb.EventBatch]:
        """Batches until the caller has enough or the stream ends, which is an error.

        The first comes within the deadline. Then there is none: pings tell whether anybody is there.
        """
        is_late = threading.Event()
        with grpc.insecure_channel(self.address, options=WATCH_OPTIONS) as channel:
            call = rpc.KVStoreStub(channel).WatchEvents(request)
            timer = threading.Timer(self.deadline_seconds, _give_up, (call, is_late))
            timer.start()
            has_begun = False
            try:
                for batch in call:
                    timer.cancel()
                    has_begun = True
                    yield batch
            except grpc.RpcError as error:
                if is_late.is_set():
                    raise too_late(self.address) from None
                problem = from_rpc(error, self.address)
                if has_begun and isinstance(problem, errors.Unanswered):
                    problem = errors.Unanswered(
                        f"the service on {self.address} is gone, or hangs: {error.details()}"
                    )
                raise problem from None
            finally:
                timer.cancel()
                call.cancel()
                timer.join()
        raise errors.Unanswered(f"the service on {self.address} has ended the stream")

    def close(self) -> None:
        """Waits at most for the deadline. gRPC's own close waits for calls whose bytes it is still writing,
        for ever where a service hangs: then it goes on beside us, and ends with the service."""
        self._is_closed = True
        # In a forked child gRPC is not to be touched at all.
        if not self.in_forked_child:
            closing = threading.Thread(target=self._channel.close, name="kvstore-close", daemon=True)
            closing.start()
            closing.join(self.deadline_seconds)


def _give_up(call: grpc.Call, is_late: threading.Event) -> None:
    is_late.set()
    call.cancel()
