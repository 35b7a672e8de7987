"""Blocks through every tier and back, bit for bit: the service as it is delivered, and an engine's process.

GPU to CPU and back, while every frame of the GPU is overwritten in between; then to disk, a restart of the
service, and back from there. The engine's kernels are copies by the driver here.
"""

import gc
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from bench.gpu_place import Place
from bench.report import Row, make_row
from kvstore.client import Client, Layout, operations
from kvstore.cuda.driver import Device
from kvstore.demo.children import Service
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["measure"]

BLOCK_TOKENS = 16
# Of a block, blocks that travel, frames that there are.
SIZES = (2 << 20, 64, 96)
SIZES_SMALL = (64 << 10, 8, 64)
WAIT_SECONDS = 30.0


def measure(place: Place, quick: bool) -> Iterator[Row]:
    block_bytes, count, frames = SIZES if place.is_gpu else SIZES_SMALL
    layout = Layout(block_tokens=BLOCK_TOKENS, block_bytes=block_bytes, fingerprint=b"g" * 32)
    with tempfile.TemporaryDirectory(prefix="kvgpu-") as name:
        folder = Path(name)
        service = _service(folder, place, block_bytes, frames)
        engine = _Engine(service.address, place, layout)
        try:
            yield from _through_the_cpu(engine, count)
            engine.close()
            service.end()
            service = _service(folder, place, block_bytes, frames)
            engine = _Engine(service.address, place, layout)
            yield _from_disk(engine, count)
        finally:
            engine.close()
            service.end()


def _service(folder: Path, place: Place, block_bytes: int, frames: int) -> Service:
    service = Service(
        "service",
        folder,
        gpu_bytes=frames * block_bytes,
        cpu_bytes=2 * frames * block_bytes,
        disk_bytes=(4 * frames * block_bytes) + (64 << 20),
        gpu_device=place.uuid,
    )
    try:
        service.until_answered()
    except BaseException:
        service.end()
        raise
    return service


def _through_the_cpu(engine: "_Engine", count: int) -> Iterator[Row]:
    client, keys, tokens = engine.client, _keys(count), count * BLOCK_TOKENS
    engine.allocate(1, tokens + 1, keys, session="chat")
    for number, frame in enumerate(client.tables.table(1)[:count]):
        engine.write(frame, _content(number, engine.block_bytes))
    client.step([operations.commit(1, 0, keys)])
    client.step([operations.swap_out(1, tokens, pb.SwapRequest.KEEP)])
    engine.until(lambda: client.tables.state(1) == pb.Sequence.SWAPPED)
    engine.overwrite(2)
    client.step([operations.swap_in(1)])
    client.wait_resident(1, WAIT_SECONDS)
    yield make_row("blocks right after GPU, CPU, GPU", "", [float(engine.right(1, count))], at_least=count)
    client.step([operations.free([1], pb.FreeRequest.SESSION)])
    client.step([])
    engine.until(lambda: engine.tier(pb.TIER_DISK).blocks_moved_in >= count)
    cpu = engine.tier(pb.TIER_CPU)
    yield make_row("of the CPU tier, pinned", "", [cpu.bytes_pinned / cpu.bytes_total], at_least=1)


def _from_disk(engine: "_Engine", count: int) -> Row:
    engine.overwrite(1)
    engine.allocate(2, count * BLOCK_TOKENS + 1, _keys(count), session="chat")
    engine.client.wait_resident(2, WAIT_SECONDS)
    name = "blocks right after disk, a restart of the service, CPU, GPU"
    return make_row(name, "", [float(engine.right(2, count))], at_least=count)


class _Engine:
    """Copies by the driver to and from the pool: what kernels would do."""

    def __init__(self, address: str, place: Place, layout: Layout) -> None:
        self.block_bytes = layout.block_bytes
        self.client = Client(address, deadline_seconds=20.0)
        self.client.attach(layout, lease_seconds=60.0)
        self._frames = self.client.pools[0].device_frames
        self._device: Device = place.driver().open(place.uuid)
        self._host = np.zeros(layout.block_bytes, np.uint8)
        self._is_open = True
        with self._device.current():
            self._stream = self._device.make_stream()

    def allocate(self, sequence: int, tokens: int, keys: Sequence[bytes] = (), session: str = "") -> None:
        asked = operations.allocate(sequence, tokens, block_keys=keys, session=session)
        [result] = self.client.step([asked]).results
        if result.allocate.outcome != pb.OUTCOME_OK:
            raise SystemExit(f"no frames for {tokens} tokens")

    def overwrite(self, sequence: int) -> None:
        """Something else in every frame that there is."""
        self.allocate(sequence, self.client.frame_count * BLOCK_TOKENS)
        for frame in self.client.tables.table(sequence):
            self.write(frame, b"\xee" * self.block_bytes)
        self.client.step([operations.free([sequence], pb.FreeRequest.DISCARD)])
        self.client.step([])

    def right(self, sequence: int, count: int) -> int:
        """Leading blocks of it that hold what was written."""
        frames = self.client.tables.table(sequence)[:count]
        return sum(
            self._read(frame) == _content(number, self.block_bytes) for number, frame in enumerate(frames)
        )

    def write(self, frame: int, content: bytes) -> None:
        self._host[:] = np.frombuffer(content, np.uint8)
        self._copy(self._at(frame), self._host.ctypes.data)

    def tier(self, kind: pb.Tier.ValueType) -> pb.TierUsage:
        [found] = [tier for tier in self.client.operator.usage().tiers if tier.tier == kind]
        return found

    def until(self, is_so: Callable[[], bool]) -> None:
        end = time.monotonic() + WAIT_SECONDS
        while not is_so():
            if time.monotonic() > end:
                raise SystemExit("the service does not come to it")
            self.client.wait_events(0.05)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            with self._device.current():
                self._device.destroy_stream(self._stream)
            self._device.close()
            del self._frames
            self.client.close()
            gc.collect()

    def _read(self, frame: int) -> bytes:
        self._copy(self._host.ctypes.data, self._at(frame))
        return self._host.tobytes()

    def _at(self, frame: int) -> int:
        return self._frames.address + frame * self._frames.shape[1]

    def _copy(self, target: int, source: int) -> None:
        with self._device.current():
            self._device.copy(target, source, self.block_bytes, self._stream)
            self._device.synchronize()


def _keys(count: int) -> list[bytes]:
    return [(number + 1).to_bytes(32, "big") for number in range(count)]


def _content(number: int, size: int) -> bytes:
    return np.random.default_rng(number).bytes(size)
