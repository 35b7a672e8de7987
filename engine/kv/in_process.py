"""KV in the engine's own memory: what the service is compared with.

Frames of equal size and a free list, no service, no cache, no other tier; what a request has computed goes
when it ends. A frame has room for a block: a few tokens, as in PagedAttention (Kwon et al. 2023), or as many
as a request may ever have, which is the contiguous cache that came before it. The latter needs no gathering:
attention reads such a frame where it is.
Tests: tests/engine/kv/test_in_process.py, test_set_ups.py.
"""

import time
from collections.abc import Callable, Sequence

from engine.kv.frames import FrameTables
from engine.kv.granting import answer_step
from engine.kv.own_pool import HostPool
from engine.kv.store_client import Pool
from kvstore.client import BlockTables, ClientError, Layout
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["InProcess"]

# Frames stand as far apart as those of the service.
PAGE_BYTES = 4096


class InProcess:
    """A `StoreClient` over `memory_bytes` of its own, made with each attach. `make_pool`: where they are, by
    frames and bytes of each (`Device.make_pool`); in host memory by default.

    Frames that a step gives back are given out at once, also where the device is late: all that touches them
    is on its one stream, in order.
    """

    engine = "in process"

    def __init__(self, memory_bytes: int, make_pool: Callable[[int, int], Pool] = HostPool) -> None:
        self._memory_bytes = memory_bytes
        self._make_pool = make_pool
        self._pools: list[Pool] = []
        self._frames = FrameTables(0)
        self._block_tokens = 0
        self.tables = BlockTables(1)
        self.next_step = 1

    def check_service(self) -> None:
        """There is none that could be away."""

    def check_attached(self) -> None:
        """Nor one that could be gone."""

    def attach(self, layout: Layout, *, build: str = "") -> None:
        stride = -(-layout.block_bytes // PAGE_BYTES) * PAGE_BYTES
        frame_count = self._memory_bytes // stride
        if not frame_count:
            raise ClientError(
                f"{self._memory_bytes} bytes of KV memory have no room for a frame, which takes {stride}; "
                f"remedy: --kv-memory with more, or fewer tokens a frame (--block-tokens, --reserve-tokens)"
            )
        try:
            self._pools = [self._make_pool(frame_count, stride)]
        except MemoryError as error:
            why = f"{self._memory_bytes} bytes of KV memory are not free: {error}"
            raise ClientError(f"{why}; remedy: a smaller --kv-memory") from error
        self._frames = FrameTables(frame_count)
        self._block_tokens = layout.block_tokens
        self.tables = BlockTables(layout.block_tokens)
        self.next_step = 1

    @property
    def pools(self) -> Sequence[Pool]:
        return self._pools

    @property
    def frame_count(self) -> int:
        return self._frames.frame_count

    def start_step(
        self,
        operations: Sequence[pb.Operation],
        *,
        completed_step: int,
        timings: Sequence[pb.StepTiming] = (),
    ) -> "Answered":
        """Answered at once; taken into the tables when the result is asked for."""
        return Answered(self, operations, answer_step(self._frames, operations, self._block_tokens))

    def wait_events(self, seconds: float, *, completed_step: int | None = None) -> Sequence[pb.Event]:
        """Nothing happens by itself."""
        time.sleep(seconds)
        return ()

    def prefetch(self, keys: Sequence[bytes]) -> None:
        """Nothing is kept elsewhere."""

    def detach(self) -> None:
        self.close()

    def close(self) -> None:
        """The memory goes with the last tensor over it."""
        self._pools = []
        self._frames = FrameTables(0)


class Answered:
    def __init__(
        self, client: InProcess, operations: Sequence[pb.Operation], response: pb.StepResponse
    ) -> None:
        self._client = client
        self._operations = operations
        self._response = response
        self._is_taken = False

    def result(self) -> pb.StepResponse:
        if not self._is_taken:
            self._is_taken = True
            self._client.tables.apply(self._operations, self._response)
            self._client.next_step += 1
        return self._response
