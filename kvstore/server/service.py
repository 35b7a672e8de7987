"""The contract's methods: decode, ask the driver, encode. What they share is in `calls.py`."""

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import TypeVar

import grpc
import grpc.aio

from kvstore.core.answers import LookupAnswer, PrefetchAnswer, RetainAnswer, SequenceAnswer, StepAnswer
from kvstore.core.errors import CheckFailed, KVStoreError
from kvstore.core.operations import (
    AllocateResult,
    CommitResult,
    ForkResult,
    FreeResult,
    Operation,
    Result,
    SwapResult,
)
from kvstore.server.calls import MESSAGE_BYTES_MAX, Handler, Streams, answering, streaming, waiting, watching
from kvstore.server.clock import now
from kvstore.server.decode import (
    decode_attach,
    decode_detach,
    decode_drain,
    decode_get_sequence,
    decode_keep_alive,
    decode_lookup,
    decode_watch,
)
from kvstore.server.decode_cached import decode_forget, decode_prefetch, decode_retain
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
    encode_attach,
    encode_copies,
    encode_keep_alive,
    encode_lookup,
    encode_sequence,
    encode_step,
)
from kvstore.server.encode_events import encode_batch
from kvstore.server.encode_results import encode_allocate, encode_fork, encode_swap
from kvstore.server.health import health_handler
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["make_server"]

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

Outcome = TypeVar("Outcome", bound=Result)


def make_server(driver: Driver, tether_path: Path, streams: Streams) -> grpc.aio.Server:
    server = grpc.aio.server(options=OPTIONS, maximum_concurrent_rpcs=CALLS_MAX)
    name = pb.DESCRIPTOR.services_by_name["KVStore"].full_name
    handlers = _Service(driver, tether_path).handlers(streams)
    ours = grpc.method_handlers_generic_handler(name, handlers)
    server.add_generic_rpc_handlers((ours, health_handler(driver.health)))
    return server


class _Service:
    def __init__(self, driver: Driver, tether_path: Path) -> None:
        self._driver = driver
        self._tether_path = tether_path

    def handlers(self, streams: Streams) -> dict[str, Handler]:
        took = self._driver.counts.add_call
        return {
            "Attach": waiting(pb.AttachRequest, self.attach),
            "KeepAlive": waiting(pb.KeepAliveRequest, self.keep_alive),
            "Detach": answering(pb.DetachRequest, self.detach),
            "Step": answering(pb.StepRequest, self.step, took),
            "StepStream": streaming(pb.StepRequest, self.step, streams, took),
            "Allocate": answering(pb.AllocateRequest, self.allocate, took),
            "Commit": answering(pb.CommitRequest, self.commit, took),
            "Fork": answering(pb.ForkRequest, self.fork, took),
            "Swap": answering(pb.SwapRequest, self.swap, took),
            "Free": answering(pb.FreeRequest, self.free, took),
            "Lookup": answering(pb.LookupRequest, self.lookup),
            "Prefetch": answering(pb.PrefetchRequest, self.prefetch),
            "Retain": answering(pb.RetainRequest, self.retain),
            "Forget": waiting(pb.ForgetRequest, self.forget),
            "GetUsage": waiting(pb.GetUsageRequest, self.get_usage),
            "GetSequence": answering(pb.GetSequenceRequest, self.get_sequence),
            "ListDecisions": answering(pb.ListDecisionsRequest, self._driver.list_decisions),
            "WatchEvents": watching(pb.WatchEventsRequest, self.watch_events),
            "Drain": waiting(pb.DrainRequest, self.drain),
            "UpdateLimits": answering(pb.UpdateLimitsRequest, self._driver.update_limits),
        }

    async def attach(self, request: pb.AttachRequest) -> pb.AttachResponse:
        attached = await self._driver.attach(decode_attach(request))
        return encode_attach(
            attached.answer,
            self._driver.store_epoch,
            gpu=attached.pools.gpu,
            tether_path=self._tether_path,
            secrets=attached.secrets,
        )

    async def keep_alive(self, request: pb.KeepAliveRequest) -> pb.KeepAliveResponse:
        event, wait_seconds = decode_keep_alive(request, now())
        answer = await self._driver.keep_alive(event, wait_seconds)
        return encode_keep_alive(event.engine, answer, self._driver.store_epoch)

    def detach(self, request: pb.DetachRequest) -> pb.DetachResponse:
        self._driver.detach(decode_detach(request, now()))
        return pb.DetachResponse()

    def step(self, request: pb.StepRequest) -> pb.StepResponse:
        event = decode_step(request, now())
        return encode_step(event.engine, self._driver.ask(event, StepAnswer))

    def allocate(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        result, answer = self._single(request.engine, decode_allocate(request), AllocateResult)
        response = encode_allocate(result)
        response.copies.extend(encode_copies(answer.copies))
        return response

    def commit(self, request: pb.CommitRequest) -> pb.CommitResponse:
        self._single(request.engine, decode_commit(request), CommitResult)
        return pb.CommitResponse()

    def fork(self, request: pb.ForkRequest) -> pb.ForkResponse:
        result, _ = self._single(request.engine, decode_fork(request), ForkResult)
        return encode_fork(result)

    def swap(self, request: pb.SwapRequest) -> pb.SwapResponse:
        result, _ = self._single(request.engine, decode_swap(request), SwapResult)
        return encode_swap(result)

    def free(self, request: pb.FreeRequest) -> pb.FreeResponse:
        self._single(request.engine, decode_free(request), FreeResult)
        return pb.FreeResponse()

    def lookup(self, request: pb.LookupRequest) -> pb.LookupResponse:
        return encode_lookup(self._driver.ask(decode_lookup(request, now()), LookupAnswer))

    def prefetch(self, request: pb.PrefetchRequest) -> pb.PrefetchResponse:
        answer = self._driver.ask(decode_prefetch(request, now()), PrefetchAnswer)
        return pb.PrefetchResponse(blocks_started=answer.blocks_started)

    def retain(self, request: pb.RetainRequest) -> pb.RetainResponse:
        answer = self._driver.ask(decode_retain(request, now()), RetainAnswer)
        size = answer.blocks_retained * self._driver.block_bytes
        return pb.RetainResponse(bytes_retained=size, blocks_retained=answer.blocks_retained)

    async def forget(self, request: pb.ForgetRequest) -> pb.ForgetResponse:
        answer = await self._driver.forget(decode_forget(request))
        return pb.ForgetResponse(blocks_forgotten=answer.blocks_forgotten, done=answer.done)

    async def get_usage(self, _: pb.GetUsageRequest) -> pb.Usage:
        await self._driver.reports.look()
        return self._driver.reports.usage_message()

    def get_sequence(self, request: pb.GetSequenceRequest) -> pb.Sequence:
        event = decode_get_sequence(request, now())
        return encode_sequence(event.sequence, self._driver.ask(event, SequenceAnswer))

    async def watch_events(self, request: pb.WatchEventsRequest) -> AsyncGenerator[pb.EventBatch, None]:
        driver = self._driver
        async with aclosing(driver.watch(decode_watch(request))) as batches:
            async for revision, happened in batches:
                yield encode_batch(revision, happened, driver.store_epoch, driver.names)

    async def drain(self, request: pb.DrainRequest) -> pb.DrainResponse:
        call = decode_drain(request)
        if call.cancel:
            self._driver.cancel_drain()
            return pb.DrainResponse()
        written, left = await self._driver.drain_to_disk(call.seconds)
        if call.stop:
            self._driver.stop()
        return pb.DrainResponse(blocks_written=written, blocks_left=left)

    def _single(self, engine: str, operation: Operation, kind: type[Outcome]) -> tuple[Outcome, StepAnswer]:
        """A Step of one operation. (A step's copies are an Allocate's; only that one answers with them.)"""
        try:
            answer = self._driver.ask(decode_single(engine, operation, now()), StepAnswer)
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
