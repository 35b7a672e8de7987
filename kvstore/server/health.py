"""grpc.health.v1: whether the service takes work, for probes and balancers.

SERVING from when the socket answers. NOT_SERVING while it drains, from the moment it is to stop, and when the
store can't go on (a bug, a mover thread that has died): then the service is about to end by itself. A disk
that takes no writes is no reason: all else works, and usage shows it.
"""

from collections.abc import AsyncGenerator, Callable

import grpc
from grpc_health.v1 import health_pb2 as pb

from kvstore.server.calls import Handler, Unknown, answering, watching
from kvstore.server.watchers import Watchers
from kvstore.v1 import kvstore_pb2

__all__ = ["Health", "health_handler"]

WATCHERS_MAX = 64
NAMES = ("", kvstore_pb2.DESCRIPTOR.services_by_name["KVStore"].full_name)
SERVING, NOT_SERVING = pb.HealthCheckResponse.SERVING, pb.HealthCheckResponse.NOT_SERVING


class Health:
    """`is_sound`: whether the store can go on. Where that has changed, `changed` is to be called."""

    def __init__(self, is_sound: Callable[[], bool]) -> None:
        self.is_draining = False
        self._is_sound = is_sound
        self._is_stopping = False
        self._watchers = Watchers(WATCHERS_MAX)

    @property
    def is_serving(self) -> bool:
        return not (self.is_draining or self._is_stopping) and self._is_sound()

    def begin_drain(self) -> None:
        """No new work is taken."""
        self.is_draining = True
        self.changed()

    def end_drain(self) -> None:
        self.is_draining = False
        self.changed()

    def begin_stop(self) -> None:
        """Calls are still answered."""
        self._is_stopping = True
        self.changed()

    def changed(self) -> None:
        self._watchers.wake()

    def close(self) -> None:
        """Whoever watches is told how it stands, and ends."""
        self._watchers.close()

    def check(self, request: pb.HealthCheckRequest) -> pb.HealthCheckResponse:
        if request.service not in NAMES:
            raise Unknown(f"no service {request.service!r} here")
        return pb.HealthCheckResponse(status=self._status())

    def list(self, _: pb.HealthListRequest) -> pb.HealthListResponse:
        response = pb.HealthListResponse()
        for name in NAMES:
            response.statuses[name].status = self._status()
        return response

    async def watch(self, request: pb.HealthCheckRequest) -> AsyncGenerator[pb.HealthCheckResponse, None]:
        """Each change; of several at once the last. What isn't here may come, so says the protocol."""
        known, told = request.service in NAMES, None
        with self._watchers.place():
            while True:
                status = self._status() if known else pb.HealthCheckResponse.SERVICE_UNKNOWN
                if status != told:
                    told = status
                    yield pb.HealthCheckResponse(status=status)
                else:
                    await self._watchers.change()

    def _status(self) -> pb.HealthCheckResponse.ServingStatus:
        return SERVING if self.is_serving else NOT_SERVING


def health_handler(health: Health) -> grpc.GenericRpcHandler:
    handlers: dict[str, Handler] = {
        "Check": answering(pb.HealthCheckRequest, health.check),
        "List": answering(pb.HealthListRequest, health.list),
        "Watch": watching(pb.HealthCheckRequest, health.watch),
    }
    return grpc.method_handlers_generic_handler(pb.DESCRIPTOR.services_by_name["Health"].full_name, handlers)
