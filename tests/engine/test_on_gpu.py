"""The engine on a real GPU, where there is one: its stream, graphs, and whole answers over the real service.

Nowhere has this run yet. Without a GPU the same things are tested on a stream that runs late
(`test_late_device.py`); only here is the stream torch's own.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch

from engine.device import DeviceRefused
from engine.devices import gpu_uuid, open_device
from engine.digests import Digests
from engine.engine import Engine
from engine.gpu_stream import CudaStream
from engine.model import Llama
from engine.models import load_model_weights
from engine.plain import answer_plainly
from kvstore.client import Client
from kvstore.demo.children import Service
from tests.engine.test_engine import assert_proven, make_requests, run_to_end

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU"),
]

BLOCK_TOKENS = 16
PAGE_BYTES = 2 << 20


@pytest.fixture
def stream() -> CudaStream:
    return CudaStream(torch.device("cuda", 0))


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """256 frames of the tiny model: a page of a GPU."""
    service = Service(
        "service",
        tmp_path,
        gpu_bytes=PAGE_BYTES,
        cpu_bytes=4 << 20,
        disk_bytes=64 << 20,
        gpu_device=gpu_uuid("cuda:0"),
    )
    try:
        service.until_answered()
        yield service
    finally:
        service.end()


def test_an_event_is_done_when_the_work_before_it_is_and_not_when_it_was_given(stream: CudaStream) -> None:
    host = stream.host_tensor(1, dtype=torch.float32)
    matrix = torch.ones(4096, 4096, device=stream.device)
    torch.cuda.synchronize()

    def work() -> None:
        product = matrix
        for _ in range(50):
            product = product @ matrix / 4096
        host.copy_(product[:1, 0], non_blocking=True)

    host.zero_()
    before = stream.record()
    stream.run(work)
    after = stream.record()
    assert not after.is_done()
    after.wait()
    assert after.is_done()
    assert host.item() == 1.0
    assert after.seconds_since(before) > 0


def test_what_was_captured_runs_again_over_what_stands_in_its_inputs(stream: CudaStream) -> None:
    given = torch.zeros(8, device=stream.device)
    host = stream.host_tensor(8, dtype=torch.float32)
    replays: list[Callable[[], torch.Tensor]] = []

    def replay() -> None:
        host.copy_(replays[0](), non_blocking=True)

    stream.run(lambda: replays.append(stream.make_capture()(lambda: given * 2 + 1)))
    for number in range(3):
        given.fill_(number)
        torch.cuda.synchronize()
        stream.run(replay)
        stream.record().wait()
        assert host.tolist() == [2.0 * number + 1] * 8


def test_many_requests_in_a_pool_too_small_answer_as_without_tiers(service: Service) -> None:
    device = open_device("cuda:0")
    model = Llama(device.place(load_model_weights("tiny")))
    layout = model.config.kv_layout(block_tokens=BLOCK_TOKENS, dtype=model.weights.dtype)
    digests = Digests(layout.block_bytes)
    with closing(Engine(model, Client(service.address), device=device, digests=digests)) as engine:
        # 16 at once, which want 368 frames in the end.
        streams = [engine.submit(each) for each in make_requests(16, (340,), new_tokens=20)]
        run_to_end(engine)
    for stream in streams:
        request = stream.request
        assert stream.answer == answer_plainly(model, request.prompt, request.max_new_tokens).tokens
    assert sum(stream.preemptions for stream in streams) > 0
    assert_proven(digests.counts)


def test_an_engine_on_the_cpu_is_refused(service: Service) -> None:
    with pytest.raises(DeviceRefused, match="--device cuda"):
        Engine(Llama(load_model_weights("tiny")), Client(service.address))
