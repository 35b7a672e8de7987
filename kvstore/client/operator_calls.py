"""What an operator asks of the service, and tools do. None of it needs an attach."""

from collections.abc import Iterator
from typing import TypeVar

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2

from kvstore.client.calls import Service
from kvstore.client.operations import duration
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["OperatorCalls"]

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


class OperatorCalls:
    """Each is made once: `Unanswered` says that there was no answer within the client's deadline."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def usage(self) -> pb.Usage:
        return self._call(self._service.stub.GetUsage, pb.GetUsageRequest())

    def is_serving(self) -> bool:
        """Whether the service takes work, by grpc.health.v1. Unanswered: there is none."""
        response = self._call(self._service.health.Check, health_pb2.HealthCheckRequest())
        return bool(response.status == health_pb2.HealthCheckResponse.SERVING)

    def watch_events(
        self, *, engine: str = "", start_revision: int = 0, store_epoch: int = 0
    ) -> Iterator[pb.EventBatch]:
        """Events from a revision of that epoch on (0: from now), as they happen.

        The first batch is empty, says where it begins, and comes within the deadline. Ends in ServiceLost
        when the service stops or hangs, and is Refused (REVISION_COMPACTED) to one who was too slow: then
        read `usage`, and watch from now.
        """
        self._service.check_process()
        request = pb.WatchEventsRequest(engine=engine, start_revision=start_revision, store_epoch=store_epoch)
        return self._service.watch(request)

    def forget(
        self,
        *,
        session: str = "",
        tenant: str = "",
        namespace: str = "",
        engine: str = "",
        whole_chain: bool = False,
        seconds: float = 60.0,
    ) -> pb.ForgetResponse:
        """Forgets what a session, a tenant, a namespace (its fingerprint in hex) or an engine has left.

        Waits so long until it is done; `done` says whether it is.
        """
        request = pb.ForgetRequest(
            session=session,
            tenant=tenant,
            namespace=namespace,
            engine=engine,
            whole_chain=whole_chain,
            wait=duration(seconds),
        )
        return self._call(self._service.stub.Forget, request, wait=seconds)

    def update_limits(self, limits: pb.Limits | None = None) -> pb.Limits:
        """Sets limits of links and watermarks of tiers; what is absent stays. Returns all that hold."""
        return self._call(self._service.stub.UpdateLimits, pb.UpdateLimitsRequest(limits=limits))

    def list_decisions(
        self, *, session: str = "", tenant: str = "", engine: str = "", sequence: int = 0, kind: str = ""
    ) -> Iterator[pb.Decision]:
        """What was decided lately, the latest first: all that is named must hold; without a tenant, of all
        of them. Asked for page by page."""
        request = pb.ListDecisionsRequest(
            session=session, tenant=tenant, engine=engine, sequence=sequence, kind=kind
        )
        while True:
            response = self.decisions_page(request)
            yield from response.decisions
            request.page_token = response.next_page_token
            if not request.page_token:
                return

    def decisions_page(self, request: pb.ListDecisionsRequest) -> pb.ListDecisionsResponse:
        """One page of them; the first also says how many there are, and whether what is named is known."""
        return self._call(self._service.stub.ListDecisions, request)

    def drain(self, seconds: float, *, cancel: bool = False, stop: bool = False) -> pb.DrainResponse:
        """Before a restart: see Drain in the contract. Waits for so long at most."""
        request = pb.DrainRequest(timeout=duration(seconds), cancel=cancel, stop=stop)
        return self._call(self._service.stub.Drain, request, wait=seconds)

    def _call(
        self,
        method: "grpc.UnaryUnaryMultiCallable[Request, Response]",
        request: Request,
        *,
        wait: float = 0.0,
    ) -> Response:
        """`wait` is how long the service itself may take before it answers."""
        self._service.check_process()
        return self._service.call(method, request, timeout=wait + self._service.deadline_seconds)
