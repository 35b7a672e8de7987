"""The real service in its own process, and an engine that speaks the contract with bare hands."""

import mmap
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self, TypeVar

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import ErrorInfo
from grpc_status import rpc_status

from kvstore.v1 import kvstore_pb2 as pb
from kvstore.v1.kvstore_pb2_grpc import KVStoreStub

DEADLINE_SECONDS = 60.0  # Nothing takes so long; a busy machine may take a while.
# Bare hands renew no lease, and what stands between two of their calls, as a command, may take a while.
LEASE_SECONDS = 120.0
BLOCK_TOKENS = 4
BLOCK_BYTES = 6000  # Not a multiple of a page, so frames and blocks differ.
GPU_FRAMES = 32

T = TypeVar("T")


def until(get: Callable[[], T], good: Callable[[T], bool], seconds: float = DEADLINE_SECONDS) -> T:
    """Asks again until the answer is good."""
    end = time.monotonic() + seconds
    while not good(value := get()):
        assert time.monotonic() < end, f"still {value}"
        time.sleep(0.01)
    return value


class TetherRefused(Exception):
    pass


class Service:
    def __init__(self, folder: Path, *flags: str, gpu_frames: int = GPU_FRAMES, cpu_frames: int = 32) -> None:
        self.folder = folder
        self.socket = folder / "k.sock"
        sizes = ("--gpu", str(gpu_frames * 8192), "--cpu", str(cpu_frames * 8192))
        self._command = [
            sys.executable,
            "-m",
            "kvstore",
            "serve",
            "--socket",
            str(self.socket),
            "--lease",
            str(LEASE_SECONDS),
            *sizes,
            *flags,
        ]
        self._log = folder / "log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        begin = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stderr=log)
        process = self.process
        until(lambda: self.log[begin:], lambda log: "kvstore ready" in log or process.poll() is not None)
        assert process.poll() is None, self.log
        return self

    @property
    def log(self) -> str:
        return self._log.read_text()

    @contextmanager
    def stub(self) -> Iterator[KVStoreStub]:
        # Each channel a connection of its own, as each engine process has one.
        options = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1))
        with grpc.insecure_channel(f"unix:{self.socket}", options=options) as channel:
            yield KVStoreStub(channel)

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Also for one that is stopped: whatever a test did, nothing is left running."""
        if self.process is None:
            return 0
        self.send(number)
        self.send(signal.SIGCONT)
        status = self.process.wait(DEADLINE_SECONDS)
        self.process = None
        return status


def layout(*, block_bytes: int = BLOCK_BYTES, ranks: int = 1) -> pb.BlockLayout:
    return pb.BlockLayout(
        block_tokens=BLOCK_TOKENS, block_bytes=block_bytes, ranks=ranks, fingerprint=b"f" * 32
    )


class Engine:
    """Attached, with the pool of rank 0 mapped."""

    def __init__(self, stub: KVStoreStub, *, lease: float = LEASE_SECONDS, build: str = "test") -> None:
        self.stub = stub
        lease_ = Duration(nanos=round(lease * 1e9) % 10**9, seconds=int(lease))
        request = pb.AttachRequest(request_id=str(uuid.uuid4()), layout=layout(), lease=lease_, build=build)
        self.attached = stub.Attach(request, timeout=DEADLINE_SECONDS)
        self.name = self.attached.engine.name
        self.tether, fd = open_tether(self.attached.fd_socket_path, self.attached.fd_secrets[0])
        self._map = mmap.mmap(fd, self.attached.pools[0].host.size_bytes)
        os.close(fd)
        self.steps = 0

    def write(self, frame: int, content: bytes) -> None:
        start = frame * self.attached.pools[0].frame_stride_bytes
        self._map[start : start + len(content)] = content

    def read(self, frame: int, size: int = BLOCK_BYTES) -> bytes:
        start = frame * self.attached.pools[0].frame_stride_bytes
        return self._map[start : start + size]

    def step(self, *operations: pb.Operation, completed: int | None = None) -> pb.StepResponse:
        self.steps += 1
        request = pb.StepRequest(
            engine=self.name,
            step=self.steps,
            completed_step=self.steps - 1 if completed is None else completed,
            operations=operations,
        )
        return self.stub.Step(request, timeout=DEADLINE_SECONDS)

    def keep_alive(self, wait: float = 0.0, seen: int = 0) -> pb.KeepAliveResponse:
        return self.stub.KeepAlive(self.keep_alive_request(wait, seen), timeout=wait + DEADLINE_SECONDS)

    def keep_alive_request(self, wait: float = 0.0, seen: int = 0) -> pb.KeepAliveRequest:
        return pb.KeepAliveRequest(
            name=self.name,
            completed_step=self.steps,
            wait=Duration(seconds=int(wait)),
            seen_revision=seen,
        )

    def close(self) -> None:
        """As the end of the process would: unmapped first, then the tether."""
        self._map.close()
        self.tether.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_tether(path: str, secret: bytes) -> tuple[socket.socket, int]:
    tether = socket.socket(socket.AF_UNIX)
    tether.settimeout(DEADLINE_SECONDS)
    tether.connect(path)
    tether.sendall(secret)
    answer, fds, _, _ = socket.recv_fds(tether, 1, 1)
    if answer != b"\0":
        tether.close()
        raise TetherRefused(answer)
    return tether, fds[0]


def key(number: int) -> bytes:
    """Never 32 zeros, which mean no parent on disk."""
    return (number + 1).to_bytes(32, "little")


def content(number: int) -> bytes:
    """What the block of that key holds."""
    return number.to_bytes(4, "little") * (BLOCK_BYTES // 4)


def allocate(
    sequence: int, token_count: int, keys: range = range(0), session: str = "", tenant: str = ""
) -> pb.Operation:
    return pb.Operation(
        allocate=pb.AllocateRequest(
            sequence=sequence,
            token_count=token_count,
            block_keys=[key(number) for number in keys],
            session=session,
            tenant=tenant,
        )
    )


def commit(sequence: int, keys: range) -> pb.Operation:
    return pb.Operation(
        commit=pb.CommitRequest(sequence=sequence, first_block=0, block_keys=[key(number) for number in keys])
    )


def free(sequence: int, retention: pb.FreeRequest.Retention.ValueType = pb.FreeRequest.CACHE) -> pb.Operation:
    return pb.Operation(free=pb.FreeRequest(sequences=[sequence], retention=retention))


def fill(engine: Engine, sequence: int, keys: range, *, session: str = "") -> list[int]:
    """Computes and commits full blocks under these keys; returns their frames."""
    tokens = len(keys) * BLOCK_TOKENS + 1
    [result] = engine.step(allocate(sequence, tokens, keys, session=session)).results
    assert result.allocate.outcome == pb.OUTCOME_OK
    table = list(result.allocate.block_table)
    for number, frame in zip(keys, table, strict=False):
        engine.write(frame, content(number))
    engine.step(commit(sequence, keys))
    # A commit is for others once the step that wrote the blocks has completed.
    engine.step()
    return table


def refusal(error: grpc.RpcError) -> ErrorInfo:
    status = rpc_status.from_call(error)
    info = ErrorInfo()
    assert status is not None
    assert status.details[0].Unpack(info)
    return info


def tier(usage: pb.Usage, which: pb.Tier.ValueType) -> pb.TierUsage:
    [found] = [each for each in usage.tiers if each.tier == which]
    return found
