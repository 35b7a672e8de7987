"""What one Attach gave: an engine's name, its pools, its steps. It ends once and as a whole.

The end comes from whoever notices first: the keep-alive thread (a tether ended, the lease is gone) or a call
(no answer, another epoch). Pools are closed before anybody hears of it.
"""

import threading
import time
from collections.abc import Sequence
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from kvstore.client.calls import Service, Started
from kvstore.client.errors import ClientError, ServiceLost
from kvstore.client.keepalive import KeepAlive
from kvstore.client.mapping import MappedPool
from kvstore.client.operations import duration
from kvstore.client.stepping import StepStream
from kvstore.client.tables import BlockTables
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["Attachment", "PendingStep"]

TRIES = 3  # So many deadlines may pass without an answer while the tethers hold.
LEASE_SECONDS_MIN = 0.1

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


class Attachment:
    def __init__(
        self, service: Service, engine: pb.Engine, pools: list[MappedPool], tables: BlockTables, lease: float
    ) -> None:
        self.engine = engine.name
        self.store_epoch = engine.store_epoch
        self.pools = pools
        self.tables = tables
        self.next_step = 1
        self._service = service
        self._steps = StepStream(service.stub.StepStream, service.stub.Step, service.deadline_seconds)
        self._patience = (TRIES if pools else 1) * service.deadline_seconds
        self._pending: PendingStep | None = None
        self._completed_step = 0
        self._seen_revision = 0
        self._ending = threading.Lock()
        self._lost = threading.Event()
        self._reason = ""
        self._interval = _granted_lease(engine, lease) / 3
        self._keep_alive = KeepAlive([pool.tether for pool in pools], self._interval, self._renew, self.end)
        self._keep_alive.start()

    @property
    def is_lost(self) -> bool:
        return self._lost.is_set()

    def start_step(
        self,
        operations: Sequence[pb.Operation],
        completed_step: int,
        timings: Sequence[pb.StepTiming] = (),
    ) -> "PendingStep":
        """Sends it, and does not wait for the answer."""
        self._check_none_pending()
        request = pb.StepRequest(
            engine=self.engine,
            step=self.next_step,
            completed_step=completed_step,
            operations=operations,
            timings=timings,
        )
        self._pending = PendingStep(self, request)
        self._pending.started = self._steps.start(request)
        return self._pending

    def take(self, pending: "PendingStep") -> pb.StepResponse:
        """A refused step has changed nothing: its number is used again."""
        self.check()
        if self._pending is not pending:
            raise ClientError(f"step {pending.step} has failed, and that was told already")
        # Asked again, after an interrupt say, it goes out again: as a call, for this stream is over.
        started, pending.started = pending.started, None
        try:
            response = self.call(self._service.stub.Step, pending.request, started=started)
        except ClientError:  # Anything else, an interrupt say, leaves open what became of it: ask again.
            self._pending = None
            raise
        self.next_step = pending.step + 1
        self._completed_step = pending.request.completed_step
        self._pending = None
        told_before = len(response.events.events) - len(self._new_events(response.events))
        del response.events.events[:told_before]
        self.tables.apply(pending.request.operations, response)
        return response

    def wait_events(self, seconds: float, completed_step: int | None) -> list[pb.Event]:
        self._check_none_pending()
        # Each call renews the lease, so none may wait for longer than renewals may be apart.
        wait = min(max(seconds, 0.0), self._interval)
        request = self._keep_alive_request(wait)
        if completed_step is not None:
            request.completed_step = completed_step
        response = self.call(self._service.stub.KeepAlive, request, wait=wait)
        self._check_engine(response.engine)
        self._completed_step = request.completed_step
        events = self._new_events(response.events)
        self.tables.apply_events(events)
        return events

    def call(
        self,
        method: "grpc.UnaryUnaryMultiCallable[Request, Response]",
        request: Request,
        *,
        wait: float = 0.0,
        started: Started[Response] | None = None,
    ) -> Response:
        """A call in this engine's name: it renews the lease, and ends the attachment when it finds no answer.

        `wait` is how long the service itself may take before it answers.
        """
        self.check()
        timeout, patience = wait + self._service.deadline_seconds, wait + self._patience
        try:
            response = self._service.call(
                method, request, timeout=timeout, patience=patience, lost=self._lost, started=started
            )
        except ServiceLost as lost:
            self.end(str(lost))
            raise ServiceLost(self._reason) from None
        self._keep_alive.put_off()
        return response

    def end(self, reason: str) -> None:
        """When this returns the pools are closed, whoever was first to notice."""
        with self._ending:
            if self._lost.is_set():
                return
            self._reason = reason
            self._lost.set()
            self._keep_alive.leave()
            self.close_pools()
            self._steps.close()

    def close(self) -> None:
        self.end("the client was closed or detached")
        self._keep_alive.join()

    def close_pools(self) -> None:
        """Alone, for a forked child only: there nobody would give back the locks that `end` takes."""
        for pool in self.pools:
            pool.close()

    def _check_none_pending(self) -> None:
        """Answers are taken in the order in which the store gave them, or tables would go back in time."""
        self.check()
        if self._pending is not None:
            raise ClientError(f"step {self._pending.step} is under way: take its result first")

    def check(self) -> None:
        """Raises ServiceLost where the end was noticed, by whomever. Asks nobody."""
        self._service.check_process()
        if self._lost.is_set():
            self.end("")  # Returns when the one who noticed has closed the pools.
            raise ServiceLost(self._reason)

    def _check_engine(self, engine: pb.Engine) -> None:
        if engine.store_epoch == self.store_epoch and engine.state != pb.Engine.EXPIRED:
            return
        self.end(f"{self.engine} is known no more: its lease has ended, or the service was started anew")
        raise ServiceLost(self._reason)

    def _renew(self) -> None:
        """Takes no events, so that they are told again to the one who waits for them."""
        request = self._keep_alive_request(wait=0.0)
        timeout = self._service.deadline_seconds
        response = self._service.call(self._service.stub.KeepAlive, request, timeout=timeout, lost=self._lost)
        self._check_engine(response.engine)

    def _keep_alive_request(self, wait: float) -> pb.KeepAliveRequest:
        # The completed step never falls, so what a step under way says of it holds here too.
        pending = self._pending
        completed_step = pending.request.completed_step if pending else self._completed_step
        return pb.KeepAliveRequest(
            name=self.engine,
            completed_step=completed_step,
            wait=duration(wait),
            seen_revision=self._seen_revision,
        )

    def _new_events(self, batch: pb.EventBatch) -> list[pb.Event]:
        """Those not told yet. The store repeats events until it hears that they were seen."""
        new = [event for event in batch.events if event.revision > self._seen_revision]
        self._seen_revision = max([self._seen_revision, batch.revision, *(event.revision for event in new)])
        return new


class PendingStep:
    """A step that was sent. The next one can be started when this one's result has been taken."""

    def __init__(self, attachment: Attachment, request: pb.StepRequest) -> None:
        self.step: int = request.step
        self.request = request  # Stays as it is: a retry sends the same bytes.
        self.started: Started[pb.StepResponse] | None = None
        self._attachment = attachment
        self._response: pb.StepResponse | None = None

    def result(self) -> pb.StepResponse:
        """Waits for the answer and takes it into the tables; asked again it gives the same answer.

        Its events are those that nothing has told before.
        """
        if self._response is None:
            self._response = self._attachment.take(self)
        return self._response


def _granted_lease(engine: pb.Engine, asked: float) -> float:
    """The store may have shortened it. Its clock is ours: a socket's two ends are on one machine."""
    if not engine.HasField("expire_time"):
        return asked
    granted = engine.expire_time.ToMicroseconds() / 1e6 - time.time()
    return max(LEASE_SECONDS_MIN, min(asked, granted))
