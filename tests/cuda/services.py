"""The real service on fake GPUs in a process of its own, and an engine that maps them by its own driver."""

import ctypes
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from kvstore.client import Client, Layout, operations
from kvstore.v1 import kvstore_pb2 as pb
from tests.cuda.bench import BLOCK_BYTES
from tests.cuda.fake import FakeDriver
from tests.server.harness import BLOCK_TOKENS, Service, key, until

__all__ = ["FakeGpuService", "GpuEngine", "gpu_engine", "rank_bytes"]


class FakeGpuService(Service):
    def __init__(self, folder: Path, *flags: str, gpu_frames: int = 32, cpu_frames: int = 32, ranks: int = 1):
        super().__init__(folder)
        self._command = [
            *(
                sys.executable,
                "-m",
                "tests.cuda.fake_service",
                "--socket",
                str(self.socket),
                "--lease",
                "120",
            ),
            *("--ranks", str(ranks)),
            *("--gpu", str(gpu_frames * ranks * 8192), "--cpu", str(cpu_frames * ranks * 8192), *flags),
        ]


def rank_bytes(number: int, rank: int) -> bytes:
    """What the block of that key holds on this rank."""
    return random.Random(number * 64 + rank).randbytes(BLOCK_BYTES)


class GpuEngine:
    def __init__(self, service: Service, ranks: int = 1, seed: int = 0) -> None:
        self.ranks = ranks
        self.driver = FakeDriver(seed, devices=ranks)
        self.layout = Layout(
            block_tokens=BLOCK_TOKENS, block_bytes=BLOCK_BYTES, ranks=ranks, fingerprint=b"f" * 32
        )
        self.client = Client(str(service.socket), cuda=self.driver, deadline_seconds=20.0)

    def attach(self) -> None:
        self.client.attach(self.layout, lease_seconds=60.0)

    def write(self, frame: int, number: int) -> None:
        """By the device's own work, on a stream that runs when it likes; waited for."""
        for rank in range(self.ranks):
            device = self.driver[rank]
            with device.current():
                stream = device.make_stream()
                device.launch(stream, [partial(_write, self._at(rank, frame), rank_bytes(number, rank))])
                device.synchronize()
                device.destroy_stream(stream)

    def holds(self, frame: int, number: int) -> bool:
        return all(
            ctypes.string_at(self._at(rank, frame), BLOCK_BYTES) == rank_bytes(number, rank)
            for rank in range(self.ranks)
        )

    def fill(self, sequence: int, numbers: Sequence[int], *, session: str = "") -> list[int]:
        """Computes the blocks of these keys and commits them; returns their frames."""
        table = self.allocate(sequence, numbers, session=session)
        for frame, number in zip(table, numbers, strict=False):
            self.write(frame, number)
        self.client.step([operations.commit(sequence, 0, [key(number) for number in numbers])])
        self.client.step([])
        return table

    def allocate(self, sequence: int, numbers: Sequence[int], *, session: str = "") -> list[int]:
        """Frames for these blocks and one token more."""
        keys = [key(number) for number in numbers]
        tokens = len(numbers) * BLOCK_TOKENS + 1
        [result] = self.client.step(
            [operations.allocate(sequence, tokens, block_keys=keys, session=session)]
        ).results
        assert result.allocate.outcome == pb.OUTCOME_OK
        return list(self.client.tables.table(sequence))

    def scribble(self, sequence: int) -> None:
        """Takes all frames that there are, leaves junk in each, and gives them back."""
        count = self.client.frame_count
        [result] = self.client.step([operations.allocate(sequence, count * BLOCK_TOKENS)]).results
        assert result.allocate.outcome == pb.OUTCOME_OK
        for frame in result.allocate.block_table:
            self.write(frame, 999_999)
        self.client.step([operations.free([sequence], pb.FreeRequest.DISCARD)])
        self.client.step([])

    def wait_state(self, sequence: int, state: pb.Sequence.State.ValueType) -> None:
        def look() -> pb.Sequence.State.ValueType:
            if self.client.tables.state(sequence) != state:
                self.client.wait_events(1.0)
            return self.client.tables.state(sequence)

        until(look, lambda found: found == state)

    def _at(self, rank: int, frame: int) -> int:
        pool = self.client.pools[rank]
        return pool.device_frames.address + frame * pool.device_frames.shape[1]


def _write(address: int, content: bytes) -> None:
    ctypes.memmove(address, content, len(content))


@contextmanager
def gpu_engine(service: Service, ranks: int = 1, seed: int = 0) -> Iterator[GpuEngine]:
    engine = GpuEngine(service, ranks, seed)
    try:
        engine.attach()
        yield engine
    finally:
        engine.client.close()
        engine.driver.close()
        assert not any(device.left_behind for device in engine.driver.by_uuid.values())
