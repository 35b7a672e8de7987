"""Steps that are left out while all else happens: by seeds, in a pool too small; and the service's death."""

import random
import signal
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from engine.digests import Digests
from engine.engine import Engine
from engine.model import Llama
from engine.models import TINY
from engine.plain import answer_plainly
from engine.requests import Request, Stream, StreamState
from kvstore.demo.children import Service
from tests.engine.late_engine import CountedCpu, HearingClient, LateGpu
from tests.engine.test_engine import (
    BLOCK_TOKENS,
    STEPS_MAX,
    assert_as_plain,
    make_requests,
    model,
    serve,
)

__all__ = ["model"]

REQUESTS = 4 + 4 + 1


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serve(tmp_path_factory.mktemp("drawn"), gpu_frames=28, cpu_frames=80) as service:
        yield service


def make_device(seed: int) -> CountedCpu | LateGpu:
    return LateGpu(seed) if seed % 2 else CountedCpu()


def draw_request(draw: random.Random, beginning: tuple[int, ...]) -> Request:
    own = tuple(draw.randrange(TINY.vocab_size) for _ in range(draw.randint(1, 120)))
    return Request(
        id="r",
        prompt=(*beginning, *own) if draw.random() < 0.4 else own,
        max_new_tokens=draw.randint(20, 80),
        priority=draw.randint(0, 1),
        samples=draw.choice([1, 1, 1, 2]),
    )


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_drawn_answers_are_plain_and_all_frames_come_back(service, model, seed):
    draw = random.Random(seed)
    device = make_device(seed)
    client = HearingClient(service.address, device)
    placed = Llama(device.place(model.weights))
    layout = model.config.kv_layout(block_tokens=BLOCK_TOKENS, dtype=model.weights.dtype)
    digests = Digests(layout.block_bytes) if seed % 4 < 2 else None
    beginning = tuple(draw.randrange(TINY.vocab_size) for _ in range(64))
    streams: list[Stream] = []
    requests = [draw_request(draw, beginning) for _ in range(REQUESTS)]
    left_out = 0
    with closing(Engine(placed, client, device=device, digests=digests, is_ahead=True)) as engine:
        for _ in range(STEPS_MAX):
            is_last = len(requests) == 1
            if requests and (not engine.has_work or (not is_last and draw.random() < 0.02)):
                # Four together are too many for the pool. The last is alone.
                for _ in range(1 if is_last else 4):
                    stream = engine.submit(requests.pop())
                    streams += [stream, *stream.followers]
            if draw.random() < 0.005:
                engine.cancel(draw.choice(streams), "the draw")
            engine.step()
            left_out += engine._exchange._is_left_out
            if not requests and not engine.has_work:
                break
        for _ in range(STEPS_MAX):
            if not client.operator.usage().tiers[0].frames_used:
                break
            engine.rest()
        assert client.operator.usage().tiers[0].frames_used == 0
    assert_served(model, streams)
    assert client.ahead == []
    assert left_out > 10
    assert sum(stream.preemptions for stream in streams) > 0
    if digests is not None:
        assert (digests.counts.wrong, digests.counts.unknown) == (0, 0)
        assert digests.counts.verified > 0


def assert_served(model: Llama, streams: list[Stream]) -> None:
    """Whoever was not cancelled has the plain answer, and who was has its beginning."""
    for stream in streams:
        request = stream.request
        plain = answer_plainly(model, request.prompt, request.max_new_tokens).tokens
        if stream.state is not StreamState.CANCELLED:
            assert stream.state is StreamState.FINISHED
            assert len(stream.answer) == request.max_new_tokens
        assert stream.answer == plain[: len(stream.answer)]
    assert sum(stream.state is StreamState.FINISHED for stream in streams) > len(streams) / 2


@pytest.mark.parametrize("seed", [0, 1])
def test_a_service_that_dies_while_steps_are_left_out_is_found_again(tmp_path, model, seed):
    device = make_device(seed)
    requests = [replace(each, max_new_tokens=60) for each in make_requests(4, (90, 40), seed=seed)]
    with serve(tmp_path, gpu_frames=80, cpu_frames=80) as service:
        client = HearingClient(service.address, device)
        placed = Llama(device.place(model.weights))
        with closing(Engine(placed, client, device=device, is_ahead=True)) as engine:
            streams = [engine.submit(each) for each in requests]
            in_a_row = 0
            while in_a_row < 4:
                engine.step()
                in_a_row = in_a_row + 1 if engine._exchange._is_left_out else 0
            service.end(signal.SIGKILL)
            had = [len(stream.answer) for stream in streams]
            with serve(tmp_path, gpu_frames=80, cpu_frames=80):
                left_out = 0
                while engine.has_work:
                    engine.step()
                    left_out += engine._exchange._is_left_out
                assert engine.attachments == 2
    assert min(had) > 0
    assert_as_plain(model, streams)
    assert left_out > 20
    assert client.ahead == []
