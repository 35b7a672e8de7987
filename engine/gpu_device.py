"""An engine's work on a GPU: weights there, the pool mapped there, one stream, graphs for decode.

All work goes to one stream, so it runs in the order in which it was begun, and a pass is over when an event
behind its work says so. Inputs go there through pinned memory, logits come back the same way, and nobody
waits but who needs the logits: chunks of a prompt that are not its last are computed while the engine is
further on.

No GPU has run this yet. The order of things is tested on a stream that runs late, by seed, with the real
service (tests/engine/test_late_device.py).
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial

import torch

from engine.batch import Batch
from engine.decode_graphs import DecodeGraphs, rows_of
from engine.device import DeviceRefused, Logits
from engine.gpu_stream import Stream
from engine.kv.own_pool import GpuPool
from engine.kv.store_client import Pool
from engine.model import Llama
from engine.passes import Event, PassesUnderWay
from engine.weights import LayerWeights, Weights
from kernels.copy_blocks import copy_blocks

__all__ = ["GpuDevice"]


class GpuDevice:
    """`name`: as it was asked for, cuda:0. `uuid`: GPU-…, which the service names pools by."""

    is_late = True

    def __init__(self, stream: Stream, name: str, uuid: str) -> None:
        self._stream = stream
        self._name = name
        self._uuid = uuid
        self._graphs: DecodeGraphs | None = None
        self._passes = PassesUnderWay()
        # Before the forward of the pass that is being put together; None: not to be timed.
        self._begin: Event | None = None
        # Prefill, and decode by sizes of batches: what has been computed once.
        self._kinds_met: set[int] = set()
        # Behind all that was given; None: something was given after it.
        self._end: Event | None = None

    def place(self, weights: Weights) -> Weights:
        device = self._stream.device
        embedding = weights.embedding.to(device)
        is_tied = weights.output is weights.embedding
        return replace(
            weights,
            embedding=embedding,
            layers=tuple(_to(layer, device) for layer in weights.layers),
            final_norm=weights.final_norm.to(device),
            output=embedding if is_tied else weights.output.to(device),
        )

    def make_pool(self, frame_count: int, stride_bytes: int) -> Pool:
        try:
            memory = torch.empty(frame_count, stride_bytes, dtype=torch.uint8, device=self._stream.device)
        except torch.OutOfMemoryError as error:
            raise MemoryError(f"{self._name} says: {error}") from error
        return GpuPool(memory, self._uuid)

    def open_pool(self, pool: Pool) -> torch.Tensor:
        if not pool.device_uuid:
            raise DeviceRefused(
                f"the service's pool is in host memory, and this engine computes on {self._name}; remedy: "
                f"kvstore serve --gpu-device {self._uuid}, or an engine with --device cpu"
            )
        if pool.device_uuid != self._uuid:
            raise DeviceRefused(
                f"the service's pool is on {pool.device_uuid}, and this engine computes on {self._name}, "
                f"{self._uuid}; remedy: --device cuda:N with the number of the pool's GPU (nvidia-smi -L), "
                f"or kvstore serve --gpu-device {self._uuid}"
            )
        self.let_go()
        return self._stream.tensor_of(pool.device_frames)

    def let_go(self) -> None:
        self._stream.record().wait()
        self._graphs = None
        self._passes = PassesUnderWay()
        self._begin = self._end = None

    def forward(self, model: Llama, batch: Batch, pool: torch.Tensor) -> Logits:
        logits = self._stream.host_tensor(
            len(batch.context_lens), model.config.vocab_size, dtype=torch.float32
        )

        def work() -> None:
            logits.copy_(self._compute(model, batch, pool), non_blocking=True)

        # The first of a kind compiles its kernels, which no later one will take.
        kind = rows_of(len(batch.context_lens)) if batch.is_decode else 0
        if kind in self._kinds_met:
            self._begin = self._begin or self._stream.record()
        self._kinds_met.add(kind)
        self._stream.run(work)
        end = self._end = self._stream.record()
        return partial(_fetch, end, logits)

    def copy_frames(
        self, frames: torch.Tensor, sources: Sequence[int], targets: Sequence[int], block_bytes: int
    ) -> None:
        pairs = self._stream.host_tensor(2, len(sources), dtype=torch.int64)
        pairs.copy_(torch.tensor([list(sources), list(targets)]))

        def work() -> None:
            there = pairs.to(frames.device, non_blocking=True)
            copy_blocks(frames, there[0], there[1], block_bytes)

        self._stream.run(work)
        self._end = None

    def read(self, frames: torch.Tensor, frame: int, size: int) -> memoryview:
        host = self._stream.host_tensor(size, dtype=torch.uint8)

        def work() -> None:
            host.copy_(frames[frame, :size], non_blocking=True)

        self._stream.run(work)
        self._end = self._stream.record()
        self._end.wait()
        return host.numpy().data

    def end_pass(self, number: int) -> None:
        end = self._end = self._end or self._stream.record()
        self._passes.end(number, end, self._begin)
        self._begin = None

    def completed_pass(self) -> int:
        return self._passes.completed()

    @property
    def is_busy(self) -> bool:
        return not self._passes.is_empty

    def take_seconds(self) -> dict[int, float]:
        return self._passes.take_seconds()

    def _compute(self, model: Llama, batch: Batch, pool: torch.Tensor) -> torch.Tensor:
        if self._graphs is None:
            self._graphs = DecodeGraphs(model, pool, self._stream)
        if self._graphs.fits(batch):
            return self._graphs.forward(batch)
        return model.forward(batch.map(self._there), pool)

    def _there(self, tensor: torch.Tensor) -> torch.Tensor:
        """On the device; what is computed there next comes behind the copy."""
        pinned = self._stream.host_tensor(*tensor.shape, dtype=tensor.dtype)
        return pinned.copy_(tensor).to(self._stream.device, non_blocking=True)


def _to(layer: LayerWeights, device: torch.device) -> LayerWeights:
    moved = {
        field.name: tensor.to(device)
        for field in fields(layer)
        if (tensor := getattr(layer, field.name)) is not None
    }
    return replace(layer, **moved)


def _fetch(end: Event, logits: torch.Tensor) -> torch.Tensor:
    end.wait()
    return logits
