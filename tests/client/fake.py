"""A service just real enough to test the client against: the contract's calls, a memory file, tethers.

It runs in the test's own process, or as `python -m tests.client.fake FOLDER` where a test wants to kill it.
"""

import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import grpc
import numpy as np
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from kvstore.v1 import kvstore_pb2 as pb
from kvstore.v1 import kvstore_pb2_grpc as rpc

BLOCK_TOKENS = 16
BLOCK_BYTES = 5000
STRIDE = 8192
FRAMES = 32


class FakeService(rpc.KVStoreServicer):
    def __init__(self, folder: Path, ranks: int = 1) -> None:
        self.address = f"unix:{folder / 'kvstore.sock'}"
        self.epoch = secrets.randbits(64)
        self.calls: list[tuple[str, bytes]] = []  # Each call with the bytes that it came with.
        self.called = threading.Condition()
        self.before: Callable[[str], None] = lambda method: None  # May wait, to lose an answer.
        self.after: Callable[[str], None] = lambda method: None
        self.refusals: dict[str, list[tuple[grpc.StatusCode, str]]] = {}
        self.size_lie = 0
        self.tethers_dropped = 0  # So many connections are closed unheard,
        self.secrets_lost = 0  # and then so many with their secret spent.
        self.events: list[pb.Event] = []
        self.engines: dict[str, pb.AttachResponse] = {}  # By request id.
        self.lease_seconds = 10.0
        self.steps_applied = 0
        self.streams = 0  # So many were opened.
        self._stopped = False
        self._answers: dict[str, tuple[bytes, pb.StepResponse]] = {}  # The last step of each engine.
        self._frame_next = 0
        self._memory = [self._make_memory() for _ in range(ranks)]
        self._secrets: dict[bytes, int] = {}
        self._fd_path = str(folder / "fd.sock")
        self.tethers: list[socket.socket] = []
        Path(self._fd_path).unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self._fd_path)
        self._listener.listen()
        self._acceptor = threading.Thread(target=self._accept)
        self._acceptor.start()
        self._executor = ThreadPoolExecutor(8)
        self._server = grpc.server(self._executor)
        rpc.add_KVStoreServicer_to_server(self, self._server)
        self._server.add_insecure_port(self.address)
        self._server.start()

    def stop(self) -> None:
        """All at once, as when the process dies."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._acceptor.join()
        for tether in self.tethers:
            tether.close()
        for descriptor in self._memory:
            os.close(descriptor)
        ended = self._server.stop(grace=None)
        with self.called:  # Handlers that wait can go: nobody hears them any more.
            self._stopped = True
            self.called.notify_all()
        ended.wait()
        self._executor.shutdown()
        Path(self._fd_path).unlink(missing_ok=True)

    def frames(self, rank: int = 0) -> np.ndarray:
        data = os.pread(self._memory[rank], FRAMES * STRIDE, 0)
        return np.frombuffer(data, np.uint8).reshape(FRAMES, STRIDE)

    def emit(self, revision: int, **moved) -> None:
        with self.called:
            self.events.append(pb.Event(revision=revision, sequence_moved=pb.SequenceMoved(**moved)))
            self.called.notify_all()

    def count(self, method: str) -> int:
        return len(self.bytes_of(method))

    def bytes_of(self, method: str) -> list[bytes]:
        return [content for name, content in self.calls if name == method]

    def wait_called(self, method: str, count: int, seconds: float = 10.0) -> bool:
        with self.called:
            return self.called.wait_for(lambda: self.count(method) >= count, seconds)

    def Attach(self, request, context):
        self._enter("Attach", request, context)
        if request.request_id not in self.engines:
            self.engines[request.request_id] = self._attach()
        self.after("Attach")
        return self.engines[request.request_id]

    def KeepAlive(self, request, context):
        self._enter("KeepAlive", request, context)
        with self.called:
            self.called.wait_for(
                lambda: self._stopped or self._batch(request.seen_revision).events, request.wait.ToSeconds()
            )
            return pb.KeepAliveResponse(
                engine=self._engine(request.name), events=self._batch(request.seen_revision)
            )

    def Detach(self, request, context):
        self._enter("Detach", request, context)
        return pb.DetachResponse()

    def Step(self, request, context):
        self._enter("Step", request, context)
        content = request.SerializeToString()
        number, (kept, answer) = request.step, self._answers.get(request.engine, (b"", pb.StepResponse()))
        if number == answer.step and content != kept:
            self._refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "STEP_CHANGED", "step", str(number))
        if number not in (answer.step, answer.step + 1):
            self._refuse(context, grpc.StatusCode.FAILED_PRECONDITION, "STEP_GAP", "step", str(number))
        if number == answer.step + 1:
            answer = self._apply(request)
            self._answers[request.engine] = content, answer
        self.after("Step")
        return answer

    def StepStream(self, requests, context):
        self.streams += 1
        for request in requests:
            yield self.Step(request, context)

    def Lookup(self, request, context):
        self._enter("Lookup", request, context)
        return pb.LookupResponse(blocks_cached=len(request.block_keys))

    def _unused(self, request, context):
        """An engine that steps uses none of these."""
        self._refuse(context, grpc.StatusCode.FAILED_PRECONDITION, "STEP_MIXED")

    Allocate = Commit = Fork = Free = Swap = UpdateLimits = Prefetch = Retain = Forget = _unused
    Drain = GetSequence = WatchEvents = ListDecisions = _unused

    def GetUsage(self, request, context):
        self._enter("GetUsage", request, context)
        return pb.Usage(store_epoch=self.epoch)

    def _enter(self, method, request, context) -> None:
        with self.called:
            self.calls.append((method, request.SerializeToString()))
            self.called.notify_all()
        self.before(method)
        if self.refusals.get(method):
            code, reason = self.refusals[method].pop(0)
            self._refuse(context, code, reason)

    def _refuse(self, context, code, reason, field="", value="") -> NoReturn:
        metadata = {"field": field, "value": value, "remedy": "do otherwise"}
        detail = any_pb2.Any()
        detail.Pack(error_details_pb2.ErrorInfo(reason=reason, domain="kvstore", metadata=metadata))
        status = status_pb2.Status(code=code.value[0], message="it cannot be", details=[detail])
        context.abort_with_status(rpc_status.to_status(status))
        raise AssertionError("abort raises")

    def _apply(self, request: pb.StepRequest) -> pb.StepResponse:
        self.steps_applied += 1
        answer = pb.StepResponse(step=request.step, events=self._batch(0))
        for operation in request.operations:
            result = answer.results.add()
            kind = operation.WhichOneof("kind") or ""
            getattr(result, kind).SetInParent()
            if kind == "allocate":
                self._allocate(operation.allocate, result.allocate)
        return answer

    def _allocate(self, request: pb.AllocateRequest, response: pb.AllocateResponse) -> None:
        blocks = -(-request.token_count // BLOCK_TOKENS) - request.known_blocks
        response.outcome, response.state = pb.OUTCOME_OK, pb.Sequence.RESIDENT
        response.first_block = request.known_blocks
        response.block_table.extend(range(self._frame_next, self._frame_next + blocks))
        self._frame_next += blocks

    def _batch(self, seen: int) -> pb.EventBatch:
        new = [event for event in self.events if event.revision > seen]
        return pb.EventBatch(revision=self.events[-1].revision if self.events else 0, events=new)

    def _engine(self, name: str) -> pb.Engine:
        engine = pb.Engine(name=name, state=pb.Engine.ATTACHED, store_epoch=self.epoch)
        engine.expire_time.FromMilliseconds(int((time.time() + self.lease_seconds) * 1000))
        return engine

    def _attach(self) -> pb.AttachResponse:
        response = pb.AttachResponse(
            engine=self._engine(f"engines/{secrets.token_hex(4)}"), fd_socket_path=self._fd_path
        )
        for rank in range(len(self._memory)):
            pool = response.pools.add(
                tier=pb.TIER_GPU,
                rank=rank,
                frame_count=FRAMES,
                block_bytes=BLOCK_BYTES,
                frame_stride_bytes=STRIDE,
            )
            pool.frame_count += self.size_lie
            pool.host.size_bytes = pool.frame_count * STRIDE
            secret = secrets.token_bytes(32)
            self._secrets[secret] = rank
            response.fd_secrets.append(secret)
        return response

    def _make_memory(self) -> int:
        descriptor = os.memfd_create("kvstore-fake")
        os.ftruncate(descriptor, FRAMES * STRIDE)
        return descriptor

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            if self.tethers_dropped:
                self.tethers_dropped -= 1
                connection.close()
                continue
            rank = self._secrets.pop(connection.recv(32), None)
            if self.secrets_lost:
                self.secrets_lost -= 1
                connection.close()
                continue
            if rank is None:
                connection.sendall(b"\1")
                connection.close()
                continue
            self.tethers.append(connection)  # First: who has the pool counts on its tether.
            socket.send_fds(connection, [b"\0"], [self._memory[rank]])


if __name__ == "__main__":
    service = FakeService(Path(sys.argv[1]))
    print("ready", flush=True)
    sys.stdin.read()
    service.stop()
