"""`kvstore serve --gpu-device` as it is, and an engine with this machine's own driver, where there is one.

Also run on a libcuda of the tests' own, see `test_bindings.py`.
"""

import gc
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from kvstore.client import Client, Layout, operations
from kvstore.cuda.bindings import load_driver
from kvstore.cuda.driver import CudaUnavailable, Device, DeviceFound
from kvstore.v1 import kvstore_pb2 as pb
from tests.cuda.services import rank_bytes
from tests.server.harness import BLOCK_BYTES, BLOCK_TOKENS, Service, key, tier, until

pytestmark = pytest.mark.gpu

BLOCKS = list(range(1, 9))
TOKENS = len(BLOCKS) * BLOCK_TOKENS
LAYOUT = Layout(block_tokens=BLOCK_TOKENS, block_bytes=BLOCK_BYTES, ranks=1, fingerprint=b"f" * 32)


@pytest.fixture
def found() -> DeviceFound:
    try:
        return load_driver().devices()[0]
    except CudaUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def service(found: DeviceFound, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("kv")
    disk = ("--disk", str(folder / "disk"), "--disk-bytes", "64MiB")
    service = Service(folder, *disk, "--gpu-device", found.uuid, gpu_frames=512, cpu_frames=256)
    yield service.start()
    service.end()


class Engine:
    """Copies by the driver to and from the pool: what kernels would do."""

    def __init__(self, service: Service, uuid: str) -> None:
        self.client = Client(str(service.socket), deadline_seconds=20.0)
        self.client.attach(LAYOUT, lease_seconds=60.0)
        self.frames = self.client.pools[0].device_frames
        assert self.frames.device_uuid == uuid
        self._device: Device = load_driver().open(uuid)
        self._host = np.zeros(BLOCK_BYTES, np.uint8)
        with self._device.current():
            self._stream = self._device.make_stream()

    def write(self, frame: int, content: bytes) -> None:
        self._host[:] = np.frombuffer(content, np.uint8)
        self._copy(self._at(frame), self._host.ctypes.data)

    def read(self, frame: int) -> bytes:
        self._copy(self._host.ctypes.data, self._at(frame))
        return self._host.tobytes()

    def table(self, sequence: int) -> Sequence[int]:
        return self.client.tables.table(sequence)[: len(BLOCKS)]

    def scribble(self, sequence: int) -> None:
        """Something else in every frame that there is."""
        count = self.client.frame_count
        [result] = self.client.step([operations.allocate(sequence, count * BLOCK_TOKENS)]).results
        assert result.allocate.outcome == pb.OUTCOME_OK
        for frame in result.allocate.block_table:
            self.write(frame, b"\xee" * BLOCK_BYTES)
        self.client.step([operations.free([sequence], pb.FreeRequest.DISCARD)])
        self.client.step([])

    def close(self) -> None:
        with self._device.current():
            self._device.destroy_stream(self._stream)
        self._device.close()
        del self.frames
        self.client.close()
        gc.collect()

    def _at(self, frame: int) -> int:
        return self.frames.address + frame * self.frames.shape[1]

    def _copy(self, target: int, source: int) -> None:
        with self._device.current():
            self._device.copy(target, source, BLOCK_BYTES, self._stream)
            self._device.synchronize()


def test_blocks_come_back_from_the_cpu_and_from_disk(
    service: Service, found: DeviceFound, tmp_path: Path
) -> None:
    keys = [key(number) for number in BLOCKS]
    engine = Engine(service, found.uuid)
    engine.client.step([operations.allocate(1, TOKENS + 1, block_keys=keys, session="chat")])
    for frame, number in zip(engine.table(1), BLOCKS, strict=True):
        engine.write(frame, rank_bytes(number, 0))
    engine.client.step([operations.commit(1, 0, keys)])
    engine.client.step([operations.swap_out(1, TOKENS, pb.SwapRequest.KEEP)])
    until(
        lambda: (engine.client.wait_events(1.0), engine.client.tables.state(1))[1],
        lambda state: state == pb.Sequence.SWAPPED,
    )
    engine.scribble(2)
    engine.client.step([operations.swap_in(1)])
    assert engine.client.wait_resident(1, 60) == TOKENS
    assert [engine.read(frame) for frame in engine.table(1)] == [rank_bytes(number, 0) for number in BLOCKS]
    engine.client.step([operations.free([1], pb.FreeRequest.SESSION)])
    engine.client.step([])
    usage = until(
        engine.client.operator.usage,
        lambda usage: (
            tier(usage, pb.TIER_DISK).blocks_moved_in == len(BLOCKS)
            and tier(usage, pb.TIER_CPU).bytes_pinned > 0
        ),
    )
    assert tier(usage, pb.TIER_GPU).memory_kind == pb.MEMORY_KIND_CUDA
    assert tier(usage, pb.TIER_CPU).bytes_pinned == tier(usage, pb.TIER_CPU).bytes_total
    engine.close()
    assert service.end() == 0, service.log
    service.start()
    engine = Engine(service, found.uuid)
    engine.scribble(1)
    engine.client.step([operations.allocate(2, TOKENS + 1, block_keys=keys, session="chat")])
    assert engine.client.wait_resident(2, 60) == TOKENS
    assert [engine.read(frame) for frame in engine.table(2)] == [rank_bytes(number, 0) for number in BLOCKS]
    engine.close()
    assert service.end() == 0, service.log


@pytest.fixture
def torch() -> ModuleType:
    """Asked for before a service: none is started for nothing."""
    found: ModuleType = pytest.importorskip("torch")
    if not found.cuda.is_available():
        pytest.skip("torch has no GPU")
    return found


def test_a_tensor_is_the_same_memory(torch: ModuleType, service: Service, found: DeviceFound) -> None:
    engine = Engine(service, found.uuid)
    tensor = torch.as_tensor(engine.frames, device="cuda:0")
    assert tensor.data_ptr() == engine.frames.address
    assert tuple(tensor.shape) == engine.frames.shape
    tensor[3, :BLOCK_BYTES] = 7
    torch.cuda.synchronize(tensor.device)
    assert engine.read(3) == b"\x07" * BLOCK_BYTES
    del tensor
    engine.close()
