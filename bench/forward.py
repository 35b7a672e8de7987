"""What an engine feels: a step that is waited for, and one that is sent while the step before it runs.

The forward pass is a sleep: the thread of an engine waits for its GPU without the interpreter's lock, and so
does a sleep. The client is `kvstore.client`, and the building of operations counts; it sends steps on a
stream, so the echo is a stream as well. What a step adds is its time less that of the loop without a call.
"""

import time
from collections.abc import Iterator, Sequence
from itertools import count
from statistics import median
from typing import Protocol

import grpc

from bench.calls import Streamed
from bench.echo import echo_stream
from bench.load import BLOCK_BYTES, BLOCK_TOKENS, FINGERPRINT, LAP_STEPS, Lap
from bench.processes import Addresses
from bench.report import Row, make_row
from kvstore.client import Client, Layout, PendingStep
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["forward_passes"]

PASSES_MS = (5, 10, 20)
STEPS = 20


class Caller(Protocol):
    """One call at a time, in two halves. `ahead`: it is sent while the step before still runs."""

    def send(self, ahead: bool) -> None: ...

    def receive(self) -> None: ...


class Nobody:
    """The loop without a call."""

    def send(self, ahead: bool) -> None:
        pass

    def receive(self) -> None:
        pass


class EchoCaller:
    def __init__(self, stream: Streamed[bytes, bytes], request: bytes) -> None:
        self._stream = stream
        self._request = request

    def send(self, ahead: bool) -> None:
        self._stream.send(self._request)

    def receive(self) -> None:
        self._stream.receive()


class EngineCaller:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._operations = self._laps()
        self._pending: PendingStep | None = None

    def send(self, ahead: bool) -> None:
        completed_step = max(0, self._client.next_step - (2 if ahead else 1))
        self._pending = self._client.start_step(next(self._operations), completed_step=completed_step)

    def receive(self) -> None:
        if self._pending is not None:
            self._pending.result()

    def _laps(self) -> Iterator[Sequence[pb.Operation]]:
        for lap in (Lap(number, columns=True) for number in count()):
            yield lap.create()
            yield from map(lap.grow, range(LAP_STEPS))
            yield lap.free()


def forward_passes(addresses: Addresses, request: bytes, rounds: int) -> list[Row]:
    """`request`: of the echo, with the sizes of a step and its answer."""
    with (
        grpc.insecure_channel(addresses.echo) as channel,
        Streamed(echo_stream(channel)) as echo,
        Client(addresses.service) as client,
    ):
        client.attach(Layout(block_tokens=BLOCK_TOKENS, block_bytes=BLOCK_BYTES, fingerprint=FINGERPRINT))
        engine, echoing = EngineCaller(client), EchoCaller(echo, request)
        rows = []
        for ahead in (False, True):
            for pass_ms in PASSES_MS:
                rows += _rows(engine, echoing, pass_ms, ahead, rounds)
    return rows


def _rows(engine: Caller, echo: Caller, pass_ms: int, ahead: bool, rounds: int) -> list[Row]:
    added, echoed = [], []
    for _ in range(rounds):
        alone = _time(Nobody(), pass_ms, ahead)
        added.append(_time(engine, pass_ms, ahead) - alone)
        echoed.append(_time(echo, pass_ms, ahead) - alone)
    name = f"{'one step ahead' if ahead else 'step waited for'}, pass of {pass_ms} ms"
    over = [a - b for a, b in zip(added, echoed, strict=True)]
    share = [100 * each / pass_ms for each in over]
    return [
        make_row(f"{name}: added", "ms", added, reference=echoed),
        make_row(f"{name}: added over the echo", "ms", over, at_most=0.3 if ahead else None),
        make_row(f"{name}: share of the pass", "%", share, at_most=3 if ahead and pass_ms == 10 else None),
    ]


def _time(caller: Caller, pass_ms: int, ahead: bool) -> float:
    """The median time of a step in milliseconds."""
    times = []
    for _ in range(STEPS):
        begin = time.perf_counter()
        caller.send(ahead)
        if not ahead:
            caller.receive()
        time.sleep(pass_ms / 1e3)
        if ahead:
            caller.receive()
        times.append(time.perf_counter() - begin)
    return median(times) * 1e3
