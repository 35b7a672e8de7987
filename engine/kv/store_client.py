"""What the engine asks of whoever keeps its KV: `kvstore.client.Client`, or memory of its own.

The engine is written for the service; memory of its own (`in_process.py`) answers the same operations.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kvstore.client import BlockTables, DeviceFrames, Layout
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["PendingStep", "Pool", "StoreClient"]


class Pool(Protocol):
    """The frames that block tables speak of."""

    @property
    def device_uuid(self) -> str:
        """Of the GPU that the frames are on; empty: they are in host memory."""
        ...

    @property
    def frames(self) -> npt.NDArray[np.uint8]:
        """[frame_count, frame_stride_bytes], of a pool in host memory."""
        ...

    @property
    def device_frames(self) -> DeviceFrames:
        """Of a pool on a GPU."""
        ...


class PendingStep(Protocol):
    """A step that was sent; one at most is under way."""

    def result(self) -> pb.StepResponse:
        """Waits for the answer, and takes it into the tables."""
        ...


class StoreClient(Protocol):
    """Calls raise ServiceLost where there is a service and it is gone; `attach` finds it again."""

    def check_service(self) -> None:
        """Returns where there is somebody to attach to; fails at once where there is not."""
        ...

    def check_attached(self) -> None:
        """Raises ServiceLost where the service is known to be gone. Asks nobody."""
        ...

    def attach(self, layout: Layout, *, build: str = "") -> None: ...

    @property
    def engine(self) -> str:
        """This engine's name, as attached."""
        ...

    @property
    def pools(self) -> Sequence[Pool]: ...

    @property
    def frame_count(self) -> int: ...

    @property
    def tables(self) -> BlockTables: ...

    @property
    def next_step(self) -> int: ...

    def start_step(
        self,
        operations: Sequence[pb.Operation],
        *,
        completed_step: int,
        timings: Sequence[pb.StepTiming] = (),
    ) -> PendingStep: ...

    def wait_events(self, seconds: float, *, completed_step: int | None = None) -> Sequence[pb.Event]: ...

    def prefetch(self, keys: Sequence[bytes]) -> object:
        """These blocks are wanted soon: whoever keeps them elsewhere may bring them up meanwhile."""
        ...

    def detach(self) -> None: ...

    def close(self) -> None: ...
