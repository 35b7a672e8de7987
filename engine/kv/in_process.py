"""KV in the engine's own memory: what the service is compared with.

Frames of equal size and a free list, no service, no cache, no other tier; what a request has computed goes
when it ends. A frame has room for a block: a few tokens, as in PagedAttention (Kwon et al. 2023), or as many
as a request may ever have, which is the contiguous cache that came before it. The latter needs no gathering:
attention reads such a frame where it is.
Tests: tests/engine/kv/test_in_process.py, test_set_ups.py.
"""

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine.kv.frames import FrameTables
from engine.kv.granting import answer_step
from kvstore.client import BlockTables, ClientError, DeviceFrames, Layout
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["InProcess"]

# Frames stand as far apart as those of the service.
PAGE_BYTES = 4096


class OwnPool:
    """Frames in host memory, all pages of which are there from the start."""

    device_uuid = ""

    def __init__(self, frame_count: int, stride_bytes: int) -> None:
        self.frames: npt.NDArray[np.uint8] = np.full((frame_count, stride_bytes), 0, dtype=np.uint8)

    @property
    def device_frames(self) -> DeviceFrames:
        raise ClientError("this pool is in host memory: use frames")


class InProcess:
    """A `StoreClient` over `memory_bytes` of its own, made with each attach."""

    engine = "in process"

    def __init__(self, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._pools: list[OwnPool] = []
        self._frames = FrameTables(0)
        self._block_tokens = 0
        self.tables = BlockTables(1)
        self.next_step = 1

    def check_service(self) -> None:
        """There is none that could be away."""

    def attach(self, layout: Layout, *, build: str = "") -> None:
        stride = -(-layout.block_bytes // PAGE_BYTES) * PAGE_BYTES
        frame_count = self._memory_bytes // stride
        if not frame_count:
            raise ClientError(
                f"{self._memory_bytes} bytes of KV memory have no room for a frame, which takes {stride}; "
                f"remedy: --kv-memory with more, or fewer tokens a frame (--block-tokens, --reserve-tokens)"
            )
        self._pools = [OwnPool(frame_count, stride)]
        self._frames = FrameTables(frame_count)
        self._block_tokens = layout.block_tokens
        self.tables = BlockTables(layout.block_tokens)
        self.next_step = 1

    @property
    def pools(self) -> Sequence[OwnPool]:
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
