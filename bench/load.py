"""What is asked of the service: 256 running sequences, 16 of which cross a block in each step.

A lap begins with a step that creates the sequences and ends with one that frees them; what is timed are the
steps between, each of which grows 16 sequences by one block: with 16 operations, or with one in columns.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import grpc

from kvstore.client import operations
from kvstore.v1 import kvstore_pb2 as pb
from kvstore.v1.kvstore_pb2_grpc import KVStoreStub

__all__ = ["BLOCK_BYTES", "BLOCK_TOKENS", "FINGERPRINT", "LAP_STEPS", "Lap", "RawEngine"]

BLOCK_TOKENS = 16
BLOCK_BYTES = 4096
FINGERPRINT = b"b" * 32
SEQUENCES = 256
GROWING = 16
GROUPS = SEQUENCES // GROWING
BLOCKS_MAX = 11
LAP_STEPS = (BLOCKS_MAX - 1) * GROUPS
DEADLINE_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Lap:
    """The operations of one lap's steps. Ids are never used again, so each lap has its own."""

    number: int
    columns: bool = False

    def create(self) -> list[pb.Operation]:
        return [operations.allocate(sequence, BLOCK_TOKENS) for sequence in self._sequences()]

    def grow(self, index: int) -> list[pb.Operation]:
        """`index` from 0 to LAP_STEPS - 1."""
        blocks, group = index // GROUPS + 1, index % GROUPS
        growing, tokens = self._sequences()[group * GROWING :][:GROWING], (blocks + 1) * BLOCK_TOKENS
        if self.columns:
            return [operations.grow(growing, [tokens] * GROWING, [blocks] * GROWING)]
        return [operations.allocate(sequence, tokens, known_blocks=blocks) for sequence in growing]

    def free(self) -> list[pb.Operation]:
        return [operations.free(self._sequences())]

    def _sequences(self) -> range:
        return range(self.number * SEQUENCES + 1, (self.number + 1) * SEQUENCES + 1)


class RawEngine:
    """An engine by the generated stub alone: no client library, no pool mapped."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.stub = KVStoreStub(channel)
        layout = pb.BlockLayout(
            block_tokens=BLOCK_TOKENS, block_bytes=BLOCK_BYTES, ranks=1, fingerprint=FINGERPRINT
        )
        request = pb.AttachRequest(request_id=str(uuid.uuid4()), layout=layout, build="bench")
        self.name = self.stub.Attach(request, timeout=DEADLINE_SECONDS).engine.name
        self._steps = 0
        self._laps = 0

    def request(self, asked: Sequence[pb.Operation]) -> pb.StepRequest:
        """The next step. Steps are to be sent in the order in which they were made."""
        self._steps += 1
        return pb.StepRequest(
            engine=self.name, step=self._steps, completed_step=self._steps - 1, operations=asked
        )

    def lap(self, columns: bool) -> list[pb.StepRequest]:
        """All steps of a lap, made before they are sent; the first and the last are not to be timed."""
        lap = Lap(self._laps, columns)
        self._laps += 1
        steps = [lap.create(), *(lap.grow(index) for index in range(LAP_STEPS)), lap.free()]
        return [self.request(asked) for asked in steps]

    def detach(self) -> None:
        self.stub.Detach(pb.DetachRequest(name=self.name), timeout=DEADLINE_SECONDS)
