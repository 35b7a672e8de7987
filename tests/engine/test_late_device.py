"""An engine whose GPU works late, over the real service: the same answers, no step told before it is over.

The stream is the tests' own (`late_stream.py`), in host memory. All else is what runs on a GPU: `GpuDevice`,
the graphs' inputs, the engine, the service. What the order of things is worth is shown by the planted fault:
an engine that tells steps as completed when their work was only given.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

import pytest
import torch

from engine.device import CpuDevice, DeviceRefused
from engine.digests import Digests
from engine.engine import Engine
from engine.gpu_device import GpuDevice
from engine.model import Llama
from engine.models import TINY
from engine.plain import answer_plainly
from engine.requests import Request, Stream, StreamState
from engine.sampling import Sampling
from kvstore.client import Client
from tests.cuda.fake import FakeDriver, fake_uuid
from tests.cuda.services import FakeGpuService
from tests.engine.late_engine import HearingClient, LateGpu
from tests.engine.late_stream import LateStream
from tests.engine.test_engine import make_requests, model, run_to_end, serve

__all__ = ["model"]

SEEDS = range(4)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory):
    """54 frames on the "GPU", 80 below."""
    with serve(tmp_path_factory.mktemp("late"), gpu_frames=54, cpu_frames=80) as service:
        yield service


@contextmanager
def attached(
    model: Llama, address: str, device: LateGpu, *, is_ahead: bool = False
) -> Iterator[tuple[Engine, HearingClient]]:
    client = HearingClient(address, device)
    with closing(Engine(model, client, device=device, is_ahead=is_ahead)) as engine:
        yield engine, client


def assert_as_plain(model: Llama, streams: Sequence[Stream]) -> None:
    for stream in streams:
        request = stream.request
        assert stream.state is StreamState.FINISHED
        assert stream.answer == answer_plainly(model, request.prompt, request.max_new_tokens).tokens


@pytest.mark.parametrize(("seed", "is_ahead"), [*zip(SEEDS, [False] * 4, strict=True), (4, True), (5, True)])
def test_answers_are_those_of_the_plain_run_and_no_step_is_told_ahead_of_its_work(
    service, model, seed, is_ahead
):
    device = LateGpu(seed)
    placed = Llama(device.place(model.weights))
    with attached(placed, service.address, device, is_ahead=is_ahead) as (engine, client):
        # Prompts of two chunks and more, so that steps are sent while chunks before them are computed.
        requests = make_requests(6, (299, 700, 600, 120, 560), new_tokens=12, seed=seed)
        streams = [engine.submit(each) for each in requests]
        for step in range(6):
            engine.step()
            if step == 2:
                engine.cancel(streams[2], "for the frames that it leaves behind it")
        run_to_end(engine)
        assert_as_plain(model, [stream for stream in streams if stream is not streams[2]])
        assert client.ahead == []
        assert client.overtaking > 0
        assert device.stream.not_done > 0
        assert client.told == sorted(client.told)


@pytest.mark.parametrize("is_ahead", [False, True])
def test_one_ahead_a_token_is_computed_while_its_step_is_answered(service, model, is_ahead):
    device = LateGpu(9)
    # Nothing is over before somebody waits for it: a token's logits, say.
    device.stream.is_stalled = True
    with attached(model, service.address, device, is_ahead=is_ahead) as (engine, client):
        [request] = make_requests(1, (40,), new_tokens=12, seed=9)
        stream = engine.submit(request)
        run_to_end(engine)
        assert_as_plain(model, [stream])
        # All but the first, and the one that gives its memory back.
        steps = client.next_step - 1
        assert client.beside_work == (steps - 2 if is_ahead else 0)
        assert steps < 12 if is_ahead else steps > 12
        assert client.ahead == []


@pytest.mark.parametrize("is_ahead", [False, True])
def test_forks_copy_their_frames_behind_the_work_before_them(service, model, is_ahead):
    device = LateGpu(7)
    prompt = tuple(range(1, 302))
    request = Request(id="n", prompt=prompt, max_new_tokens=9, samples=3, sampling=Sampling(temperature=0.0))
    with attached(model, service.address, device, is_ahead=is_ahead) as (engine, client):
        stream = engine.submit(request)
        streams = [stream, *stream.followers]
        run_to_end(engine)
        assert_as_plain(model, streams)
        assert client.ahead == []


def test_the_planted_fault_is_found_where_another_engine_is_given_the_frames(service, model):
    assert _other_engines_answer_is_right(service.address, model, tells_truth=True)
    assert not _other_engines_answer_is_right(service.address, model, tells_truth=False)


def _other_engines_answer_is_right(address: str, model: Llama, *, tells_truth: bool) -> bool:
    """One is cancelled while its chunk waits on the device; what it leaves another would take."""
    device = LateGpu(0, tells_truth=tells_truth)
    device.stream.is_stalled = True
    first, second = make_requests(2, (767, 800), new_tokens=16, seed=11 + tells_truth)
    client = HearingClient(address, device)
    with (
        closing(Engine(model, client, device=device)) as late,
        closing(Engine(model, Client(address))) as other,
    ):
        stream = late.submit(first)
        late.step()
        assert device.stream.given > 0
        assert device.stream.run_count == 0
        late.cancel(stream, "for its frames")
        late.step()
        late.rest()
        answer = other.submit(second)
        for _ in range(4):
            other.step()
        assert bool(answer.computed) != tells_truth
        # Now the device comes to it.
        device.stream.is_stalled = False
        while device.stream.run_count < device.stream.given:
            device.stream.run_one()
        late.rest()
        run_to_end(other)
        assert bool(client.ahead) != tells_truth
        plain = answer_plainly(model, second.prompt, second.max_new_tokens)
        return answer.answer == plain.tokens


def test_an_engine_on_the_gpu_tier_of_a_fake_gpu_and_every_block_is_proven(model, tmp_path):
    """Copies of the service run late as well, and out of order, on a driver in host memory."""
    disk = ("--disk", str(tmp_path / "disk"), "--disk-bytes", "64MiB")
    service = FakeGpuService(tmp_path, *disk, gpu_frames=56, cpu_frames=80)
    service.start()
    driver, device = FakeDriver(3), LateGpu(3, is_host_pool=False)
    layout = model.config.kv_layout(block_tokens=16, dtype=model.weights.dtype)
    digests = Digests(layout.block_bytes)
    try:
        client = HearingClient(str(service.socket), device, driver)
        with closing(Engine(model, client, device=device, digests=digests, is_ahead=True)) as engine:
            streams = [engine.submit(each) for each in make_requests(6, (299, 120, 340, 40), new_tokens=36)]
            run_to_end(engine)
            assert_as_plain(model, streams)
            assert sum(stream.preemptions for stream in streams) > 0
        assert client.ahead == []
        assert (digests.counts.wrong, digests.counts.unknown) == (0, 0)
        assert digests.counts.verified > 0
        with pytest.raises(DeviceRefused, match=rf"on {fake_uuid(0)}.*--device cuda"):
            Engine(model, Client(str(service.socket), cuda=driver), device=CpuDevice())
        elsewhere = GpuDevice(LateStream(0), "cuda:1", fake_uuid(1))
        with pytest.raises(DeviceRefused, match=rf"{fake_uuid(0)}.*cuda:1, {fake_uuid(1)}; remedy"):
            Engine(model, Client(str(service.socket), cuda=driver), device=elsewhere)
        assert not driver[0].left_behind
    finally:
        driver.close()
        assert service.end() == 0, service.log


def test_a_pool_in_host_memory_is_refused_with_what_to_do_and_the_engine_leaves(service, model):
    device = GpuDevice(LateStream(0), "cuda:0", fake_uuid(0))
    with pytest.raises(DeviceRefused, match=rf"host memory.*serve --gpu-device {fake_uuid(0)}.*--device cpu"):
        Engine(model, Client(service.address), device=device)
    service.rest()


def test_a_placed_model_has_its_name_and_its_ties(model: Llama):
    placed = LateGpu(0).place(model.weights)
    assert placed.digest == model.weights.digest
    assert placed.output is placed.embedding
    assert placed.config == TINY


def test_whoever_lets_go_of_a_pool_waits_for_all_work_on_it():
    device = LateGpu(5)
    frames = torch.zeros(4, 8192, dtype=torch.uint8)
    device.copy_frames(frames, [1], [2], 64)
    frames[1] = 9
    device.let_go()
    assert frames[2, :64].tolist() == [9] * 64
    assert not frames[2, 64:].any()
