"""One caller at a time: a Step of 16 operations, a Lookup of 1,024 keys, and echoes of the same sizes.

The client side is the generated stub with requests made before, and for the echo bytes: what differs is the
server, and the protobuf of the client.
"""

from collections.abc import Callable, Iterable
from functools import partial
from statistics import median
from time import perf_counter
from typing import TypeVar

import grpc

from bench.calls import Streamed
from bench.echo import echo_stream, echo_unary, make_request
from bench.load import BLOCK_TOKENS, LAP_STEPS, RawEngine
from bench.processes import Addresses
from bench.report import Row, make_row
from kvstore.client import operations
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["FORMS", "echo_of_step", "round_trips", "time_calls", "time_lap"]

LOOKUP_KEYS = 1024
LOOKUPS = 50

Request = TypeVar("Request")


# Of a step in either form: how it is named in a row.
FORMS = {False: "Step of 16 operations", True: "Step of 16 sequences in columns"}


def round_trips(addresses: Addresses, rounds: int) -> list[Row]:
    with grpc.insecure_channel(addresses.service) as service, grpc.insecure_channel(addresses.echo) as echo:
        engine = RawEngine(service)
        rows = []
        for columns in FORMS:
            unary = engine.stub.Step, echo_unary(echo)
            rows.append(_step("unary", engine, *unary, columns, addresses, rounds))
            with Streamed(engine.stub.StepStream) as step, Streamed(echo_stream(echo)) as echoed:
                rows.append(_step("stream", engine, step, echoed, columns, addresses, rounds))
        rows.append(_lookup(engine, echo_unary(echo), rounds))
        engine.detach()
    return rows


def echo_of_step(address: str, columns: bool) -> bytes:
    """The echo's request with the sizes of a step in the middle of a lap, and of its answer."""
    with grpc.insecure_channel(address) as channel:
        engine = RawEngine(channel)
        lap = engine.lap(columns)
        responses = [engine.stub.Step(request) for request in lap]
        engine.detach()
    middle = len(lap) // 2
    return make_request(lap[middle].ByteSize(), responses[middle].ByteSize())


def time_lap(
    engine: RawEngine, step: Callable[[pb.StepRequest], pb.StepResponse], columns: bool
) -> list[float]:
    """Seconds of each step, but for those that create and free the sequences."""
    create, *grow, free = engine.lap(columns)
    step(create)
    seconds = time_calls(step, grow)
    step(free)
    return seconds


def time_calls(call: Callable[[Request], object], requests: Iterable[Request]) -> list[float]:
    """Seconds of each call."""
    seconds = []
    for request in requests:
        begin = perf_counter()
        call(request)
        seconds.append(perf_counter() - begin)
    return seconds


def _in_turns(
    rounds: int, measured: Callable[[], list[float]], reference: Callable[[], list[float]]
) -> tuple[list[float], list[float]]:
    """The medians of each round in microseconds; a first round warms up."""
    pairs = [(median(measured()) * 1e6, median(reference()) * 1e6) for _ in range(rounds + 1)][1:]
    samples, references = zip(*pairs, strict=True)
    return list(samples), list(references)


def _step(
    form: str,
    engine: RawEngine,
    step: Callable[[pb.StepRequest], pb.StepResponse],
    echo: Callable[[bytes], bytes],
    columns: bool,
    addresses: Addresses,
    rounds: int,
) -> Row:
    same = [echo_of_step(addresses.service, columns)] * LAP_STEPS
    samples, references = _in_turns(
        rounds, partial(time_lap, engine, step, columns), partial(time_calls, echo, same)
    )
    name = f"{FORMS[columns]}, {form}"
    return make_row(name, "us", samples, reference=references, ratio_at_most=1.3)


def _lookup(engine: RawEngine, echo: Callable[[bytes], bytes], rounds: int) -> Row:
    """All of them cached: the longest way through the index."""
    keys = [number.to_bytes(32, "big") for number in range(LOOKUP_KEYS)]
    sequence = 1 << 40
    asked = [operations.allocate(sequence, LOOKUP_KEYS * BLOCK_TOKENS + 1)]
    for step in (asked, [operations.commit(sequence, 0, keys)], [operations.free([sequence])], []):
        engine.stub.Step(engine.request(step))
    request = pb.LookupRequest(engine=engine.name, block_keys=keys)
    response = engine.stub.Lookup(request)
    if response.blocks_cached != LOOKUP_KEYS:
        raise SystemExit(f"{response.blocks_cached} of {LOOKUP_KEYS} blocks were found")
    same = make_request(request.ByteSize(), response.ByteSize())
    samples, references = _in_turns(
        rounds,
        partial(time_calls, engine.stub.Lookup, [request] * LOOKUPS),
        partial(time_calls, echo, [same] * LOOKUPS),
    )
    name = "Lookup of 16,384 tokens: 1,024 keys, all cached"
    return make_row(name, "us", samples, reference=references, ratio_at_most=1.5)
