"""Memory of the engine's own on a GPU: the stream is the tests' own, which runs late (late_stream.py)."""

from contextlib import closing

import pytest
import torch

from engine.device import CpuDevice, DeviceRefused
from engine.engine import Engine
from engine.gpu_device import GpuDevice
from engine.kv.in_process import InProcess
from engine.kv.set_ups import CONTIGUOUS, PAGED, SetUp
from engine.model import Llama
from engine.requests import Request, StreamState
from engine.sampling import Sampling
from kvstore.client import ClientError, Layout
from tests.cuda.fake import fake_uuid
from tests.engine.late_stream import LateStream
from tests.engine.test_engine import assert_as_plain, make_requests, model, run_to_end

__all__ = ["model"]

TOKEN_BYTES = 512
SET_UPS = pytest.mark.parametrize(("set_up", "block_tokens"), [(CONTIGUOUS, 512), (PAGED, 16)])


def late_gpu(seed: int) -> GpuDevice:
    return GpuDevice(LateStream(seed), "cuda:0", fake_uuid(0))


@SET_UPS
@pytest.mark.parametrize("seed", range(3))
def test_a_late_device_answers_as_the_plain_run_in_memory_that_is_given_out_again(
    model: Llama, set_up: SetUp, block_tokens: int, seed: int
) -> None:
    device = late_gpu(seed)
    client = InProcess(1536 * TOKEN_BYTES, device.make_pool)
    with closing(
        Engine(model, client, set_up=set_up, device=device, block_tokens=block_tokens, running_max=999)
    ) as engine:
        assert client.pools[0].device_uuid == fake_uuid(0)
        requests = make_requests(8, (299, 120, 340, 40), new_tokens=10, seed=seed)
        streams = [engine.submit(each) for each in requests]
        samples = engine.submit(
            Request(
                id="n",
                prompt=(5, 6, 7) * 20,
                max_new_tokens=9,
                samples=3,
                sampling=Sampling(temperature=0.0),
            )
        )
        streams += [samples, *samples.followers]
        for _ in range(4):
            engine.step()
        # What it leaves is given to others while its work may not have run yet.
        engine.cancel(streams[1], "the test")
        run_to_end(engine)
        assert streams.pop(1).state is StreamState.CANCELLED
        assert_as_plain(model, streams)


def test_each_device_makes_pools_that_it_opens_and_the_other_refuses() -> None:
    gpu, cpu = late_gpu(1), CpuDevice()
    frames = gpu.open_pool(gpu.make_pool(3, 4096))
    assert (frames.shape, frames.dtype) == ((3, 4096), torch.uint8)
    # The memory stays as long as the tensor over it.
    frames[2] = 7
    assert int(frames.sum()) >= 7 * 4096
    assert cpu.open_pool(cpu.make_pool(3, 4096)).shape == (3, 4096)
    with pytest.raises(DeviceRefused):
        cpu.open_pool(gpu.make_pool(1, 4096))
    with pytest.raises(DeviceRefused):
        gpu.open_pool(cpu.make_pool(1, 4096))


def test_a_gpu_that_is_full_says_so_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*shape: int, **options: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    device = late_gpu(1)
    monkeypatch.setattr(torch, "empty", full)
    with pytest.raises(MemoryError, match="cuda:0 says: CUDA out of memory"):
        device.make_pool(3, 4096)


def test_memory_that_is_not_free_is_told_with_what_to_do() -> None:
    def make_pool(frame_count: int, stride_bytes: int) -> None:
        raise MemoryError("cuda:0 says: out of memory")

    layout = Layout(block_tokens=16, block_bytes=4096, fingerprint=bytes(32))
    with pytest.raises(
        ClientError, match="65536 bytes of KV memory are not free: cuda:0 says: out of memory"
    ):
        InProcess(65536, make_pool).attach(layout)  # type: ignore[arg-type]
