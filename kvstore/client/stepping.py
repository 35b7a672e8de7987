"""Steps on a stream, which costs less a step than a call for each.

gRPC takes requests from us in a thread of its own. A stream has no deadline, so that thread, while it waits
for the next request, also sees to it that nobody waits too long for the answer to the last. A stream ends
with the first step that fails in any way, and the next step opens another.

That thread can't look while it sends, which a service that hangs may hold up. So a large step, for which the
cost of a call is little, is a call.
"""

import queue
import threading
import time
from collections.abc import Iterator

import grpc

from kvstore.client.calls import LargeCall, Started, is_large
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["StepStream", "StreamedStep"]

# A deadline is looked at so often while it runs.
LOOKS = 4


class StepStream:
    """One step at most is under way: its result is taken before the next is started."""

    def __init__(
        self,
        method: "grpc.StreamStreamMultiCallable[pb.StepRequest, pb.StepResponse]",
        single: "grpc.UnaryUnaryMultiCallable[pb.StepRequest, pb.StepResponse]",
        deadline_seconds: float,
    ) -> None:
        self._method = method
        self._single = single
        self._deadline_seconds = deadline_seconds
        self._open: StreamedStep | None = None
        self._closed = False

    def start(self, request: pb.StepRequest) -> Started[pb.StepResponse]:
        """Sends it, and does not wait for the answer."""
        if is_large(request):
            return LargeCall(self._single, request, self._deadline_seconds)
        stream = self._open
        if stream is None or not stream.is_free:
            if stream is not None:
                stream.close()
            stream = self._open = StreamedStep(self._method, self._deadline_seconds)
        if self._closed:  # Looked at when `close` can see the stream: one of the two ends it.
            stream.close()
        stream.send(request)
        return stream

    def close(self) -> None:
        """For good, and from any thread. Who waits for an answer on the stream is told that there is none."""
        self._closed = True
        if self._open is not None:
            self._open.close()


class StreamedStep:
    """The stream, as what its last step is: an answer to wait for."""

    def __init__(
        self,
        method: "grpc.StreamStreamMultiCallable[pb.StepRequest, pb.StepResponse]",
        deadline_seconds: float,
    ) -> None:
        self._deadline_seconds = deadline_seconds
        self._requests: queue.SimpleQueue[pb.StepRequest | None] = queue.SimpleQueue()
        self._has_ended = False
        self._in_flight = False
        self._waits_until = float("inf")
        self._call = method(self._sent())

    @property
    def is_free(self) -> bool:
        """An answer that nobody has taken, after an interrupt say, must not be taken for another's."""
        return not (self._has_ended or self._in_flight)

    def send(self, request: pb.StepRequest) -> None:
        self._in_flight = True
        self._requests.put(request)

    def result(self) -> pb.StepResponse:
        """Waits at most for the deadline and a look. Raises what a call does; CANCELLED: it was too late."""
        self._waits_until = time.monotonic() + self._deadline_seconds
        try:
            response = next(self._call)
        except (
            BaseException
        ):  # An interrupt leaves an answer on its way, which must not be taken for another.
            self.close()
            raise
        self._waits_until = float("inf")
        self._in_flight = False
        return response

    def close(self) -> None:
        self._has_ended = True
        self._requests.put(None)
        self._call.cancel()

    def _sent(self) -> Iterator[pb.StepRequest]:
        """What gRPC's thread runs; it is named for those who look at threads."""
        threading.current_thread().name = "kvstore-steps"
        while True:
            try:
                request = self._requests.get(
                    timeout=self._deadline_seconds / LOOKS if self._in_flight else None
                )
            except queue.Empty:
                if time.monotonic() > self._waits_until:
                    return self.close()
                continue
            if request is None:
                return
            yield request
