"""An engine over memory of its own: how many run at once in it, and that all of it comes back."""

import random
from collections.abc import Iterator
from contextlib import closing

import pytest
import torch

from engine.engine import Engine, EngineError
from engine.kv.in_process import InProcess
from engine.kv.set_ups import CONTIGUOUS, PAGED, SetUp
from engine.model import Llama
from engine.models import load_model_weights
from engine.requests import Request, Stream, StreamState
from kvstore.client import ClientError, Layout
from tests.engine.test_engine import STEPS_MAX, assert_as_plain, make_requests, run_to_end

TOKEN_BYTES = 512
SET_UPS = pytest.mark.parametrize(("set_up", "block_tokens"), [(CONTIGUOUS, 512), (PAGED, 16)])


@pytest.fixture(scope="module")
def model() -> Iterator[Llama]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Llama(load_model_weights("tiny"))
    torch.set_num_threads(threads)


def make_engine(
    model: Llama, set_up: SetUp, tokens: int, *, block_tokens: int = 16, running_max: int = 999
) -> Engine:
    """With room for so many tokens."""
    client = InProcess(tokens * TOKEN_BYTES)
    return Engine(model, client, set_up=set_up, block_tokens=block_tokens, running_max=running_max)


def most_at_once(engine: Engine, count: int) -> int:
    """Requests of 300 tokens each, 200 of them answered: how many have frames at once."""
    streams = [engine.submit(each) for each in make_requests(count, (100,), new_tokens=200)]
    most = 0
    for _ in range(STEPS_MAX):
        engine.step()
        most = max(most, sum(each.state is StreamState.RUNNING for each in streams))
        if not engine.has_work:
            break
    assert all(each.state is StreamState.FINISHED for each in streams)
    return most


def test_in_the_same_memory_pages_hold_almost_seven_times_as_many(model):
    # 299 tokens are fed to the model: 19 blocks of 16, where 2,048 are reserved.
    tokens = 2 * 2048
    with closing(make_engine(model, CONTIGUOUS, tokens, block_tokens=2048)) as engine:
        assert most_at_once(engine, 5) == 2
        assert engine.figures.kv_tokens_capacity == tokens
    with closing(make_engine(model, PAGED, tokens)) as engine:
        assert most_at_once(engine, 15) == tokens // (19 * 16) == 13
        assert engine.figures.kv_tokens_capacity == tokens


@SET_UPS
def test_requests_wait_for_room_and_none_ever_fails(model, set_up, block_tokens):
    with closing(make_engine(model, set_up, 1536, block_tokens=block_tokens)) as engine:
        streams = [engine.submit(each) for each in make_requests(14, (299, 120, 340, 40))]
        run_to_end(engine)
        assert_as_plain(model, streams)
        assert sum(each.preemptions for each in streams) == 0
        assert engine.figures.requests_waiting == engine.figures.kv_tokens_held == 0


@SET_UPS
@pytest.mark.parametrize("seed", range(3))
def test_all_frames_come_back_whoever_is_cancelled_when(model, set_up, block_tokens, seed):
    draw = random.Random(seed)
    client = InProcess(2560 * TOKEN_BYTES)
    with closing(Engine(model, client, set_up=set_up, block_tokens=block_tokens, running_max=999)) as engine:
        streams: list[Stream] = []
        for _ in range(120):
            if draw.random() < 0.4:
                prompt = tuple(draw.randrange(300) for _ in range(draw.randint(1, 200)))
                samples, beams = draw.choice([(1, 1), (1, 1), (3, 1), (2, 4)])
                new_tokens = draw.randint(1, 30)
                request = Request(
                    id="r", prompt=prompt, max_new_tokens=new_tokens, samples=samples, beams=beams
                )
                stream = engine.submit(request)
                streams += [stream, *stream.followers]
            if draw.random() < 0.3 and streams:
                engine.cancel(draw.choice(streams), "the test")
            engine.step()
        run_to_end(engine)
        ended = {each.state for each in streams}
        assert ended == {StreamState.FINISHED, StreamState.CANCELLED}
        assert not any(sequence in client.tables for sequence in range(9999))
        # Every frame is given out again, all at once.
        single = make_requests(client.frame_count, (1,), new_tokens=3)
        again = [engine.submit(each) for each in single]
        engine.step()
        assert sum(each.state is StreamState.RUNNING for each in again) == client.frame_count


def test_what_never_fits_is_refused_and_says_why(model):
    with closing(make_engine(model, CONTIGUOUS, 1024, block_tokens=512)) as engine:
        with pytest.raises(EngineError, match="600 tokens are more than the 512 that are reserved for each"):
            engine.submit(Request(id="long", prompt=(1,) * 580, max_new_tokens=20))
        with pytest.raises(
            EngineError, match="its answers may come to need 3 blocks, and the KV memory has 2"
        ):
            engine.submit(Request(id="wide", prompt=(1,), max_new_tokens=20, samples=3))
    with (
        closing(make_engine(model, PAGED, 512)) as engine,
        pytest.raises(EngineError, match="need 33 blocks, and the KV memory has 32"),
    ):
        engine.submit(Request(id="long", prompt=(1,) * 500, max_new_tokens=14))


def test_memory_without_room_for_a_frame_is_refused():
    with pytest.raises(
        ClientError, match="4095 bytes of KV memory have no room for a frame, which takes 4096"
    ):
        InProcess(4095).attach(Layout(block_tokens=16, block_bytes=4096, fingerprint=bytes(32)))


@pytest.mark.parametrize("is_ahead", [False, True])
def test_who_comes_and_who_takes_a_place_is_computed_with_the_next_pass(model, is_ahead):
    """Also where the step of that pass was sent before they came, or the place was free."""
    client = InProcess(1024 * TOKEN_BYTES)
    with closing(Engine(model, client, set_up=PAGED, running_max=2, is_ahead=is_ahead)) as engine:
        first, late, waiting = (
            Request(id=f"r{place}", prompt=(1, 2, 3 + place), max_new_tokens=8) for place in range(3)
        )
        running = engine.submit(first)
        for _ in range(4):
            engine.step()
        newcomer, last = engine.submit(late), engine.submit(waiting)
        engine.step()
        assert (len(newcomer.margins), len(last.margins)) == (1, 0)
        while not running.is_done:
            engine.step()
        assert not last.margins
        engine.step()
        assert len(last.margins) == 1
        run_to_end(engine)
        assert_as_plain(model, [running, newcomer, last])
