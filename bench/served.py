"""A sequence out and in again through the real service, as an engine sees it: from the step that asks for it
to the event that tells its end."""

import time

import numpy as np

from bench.processes import service
from bench.report import Row, make_row
from kvstore.client import operations
from kvstore.client.attaching import Layout
from kvstore.client.client import Client
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["served"]

BLOCK_TOKENS = 16
BLOCK_BYTES = 2 << 20
BLOCKS = 96
POOL_BYTES = 256 << 20
WAIT_SECONDS = 30.0


def served(rounds: int) -> list[Row]:
    size = BLOCKS * BLOCK_BYTES
    out, into, references = [], [], []
    source, target = np.ones(size, np.uint8), np.ones(size, np.uint8)
    with service("--gpu", str(POOL_BYTES), "--cpu", str(POOL_BYTES)) as address, Client(address) as client:
        client.attach(Layout(block_tokens=BLOCK_TOKENS, block_bytes=BLOCK_BYTES, fingerprint=b"s" * 32))
        tokens = BLOCKS * BLOCK_TOKENS
        client.step([operations.allocate(1, tokens)])
        for frame in client.tables.table(1):
            client.pools[0].frames[frame] = 1
        for _ in range(rounds + 1):
            began = time.perf_counter()
            target[:] = source
            references.append(size / 1e9 / (time.perf_counter() - began))
            swap = operations.swap_out(1, tokens, pb.SwapRequest.KEEP)
            out.append(size / 1e9 / _until(client, swap, pb.Sequence.SWAPPED))
            into.append(size / 1e9 / _until(client, operations.swap_in(1), pb.Sequence.RESIDENT))
    name = f"a sequence of {size >> 20} MiB through the service, over one numpy copy"
    return [
        make_row(f"{name}: out", "GB/s", out[1:], reference=references[1:]),
        make_row(f"{name}: in", "GB/s", into[1:], reference=references[1:]),
    ]


def _until(client: Client, operation: pb.Operation, state: pb.Sequence.State.ValueType) -> float:
    began = time.perf_counter()
    client.step([operation])
    step = client.next_step - 1
    while client.tables.state(1) != state:
        if time.perf_counter() - began > WAIT_SECONDS:
            raise SystemExit(f"the sequence is {pb.Sequence.State.Name(client.tables.state(1))}")
        client.wait_events(1.0, completed_step=step)
    return time.perf_counter() - began
