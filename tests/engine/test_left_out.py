"""Steps that are left out, over the real service: what is saved, and that nobody loses by it."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest

from engine.engine import Engine
from engine.exchange import LEFT_OUT_MAX, LEFT_OUT_SOON_MAX, Exchange
from engine.model import Llama
from engine.requests import Request, Stream, StreamState
from kvstore.client import Client
from kvstore.demo.children import Service
from tests.engine.late_engine import CountedCpu, HearingClient, LateGpu
from tests.engine.test_engine import assert_as_plain, make_requests, model, run_to_end, serve

__all__ = ["model"]

# From the pass behind which something is to be told: two that are left out, the one beside which it goes,
# and as many until the work before it is told to be over, of which a GPU may hear one later.
SOON_PASSES = 2 * (LEFT_OUT_SOON_MAX + 1) + 1


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serve(tmp_path_factory.mktemp("left_out"), gpu_frames=900, cpu_frames=300) as service:
        yield service


@pytest.fixture(params=["cpu", "gpu"])
def device(request: pytest.FixtureRequest) -> CountedCpu | LateGpu:
    return CountedCpu() if request.param == "cpu" else LateGpu(3)


@contextmanager
def attached(
    model: Llama, service: Service, device: CountedCpu | LateGpu
) -> Iterator[tuple[Engine, HearingClient]]:
    client = HearingClient(service.address, device)
    placed = Llama(device.place(model.weights))
    with closing(Engine(placed, client, device=device, is_ahead=True)) as engine:
        yield engine, client


def run_until_decoding(engine: Engine, streams: list[Stream]) -> None:
    while not all(stream.margins for stream in streams):
        engine.step()


def test_of_eight_who_decode_one_step_in_eight_is_sent(service, model, device):
    with attached(model, service, device) as (engine, client):
        streams = [engine.submit(each) for each in make_requests(8, (60, 25, 40), new_tokens=120, seed=1)]
        run_until_decoding(engine, streams)
        before = client.next_step, len(streams[-1].margins)
        rows = 0
        while not streams[0].is_done:
            steps = client.next_step
            engine.step()
            rows = 0 if client.next_step > steps else rows + 1
            assert rows <= LEFT_OUT_MAX
        steps, passes = client.next_step - before[0], len(streams[-1].margins) - before[1]
        run_to_end(engine)
        assert_as_plain(model, streams[:2])
    assert passes > 100
    # Beside those that tell the last prompt, and that the work on it is over.
    assert passes / (LEFT_OUT_MAX + 1) - 1 <= steps <= passes / (LEFT_OUT_MAX + 1) + 5
    assert client.ahead == []


def test_whoever_decodes_misses_no_pass_for_a_step_that_was_left_out(service, model, device):
    with attached(model, service, device) as (engine, _):
        assert count_missed(engine, seed=2) == 0


def test_where_lack_of_room_were_no_haste_some_would(service, model, device, monkeypatch):
    monkeypatch.setattr("engine.scheduler.has_room", lambda roster, under_way: True)
    with attached(model, service, device) as (engine, _):
        assert count_missed(engine, seed=3) > 0


def count_missed(engine: Engine, seed: int) -> int:
    """Passes in which somebody who has a token to be fed is not fed it, while there is memory for all."""
    requests = make_requests(6, (60, 25, 47, 31), new_tokens=50, seed=seed)
    streams = [engine.submit(each) for each in requests]
    missed = 0
    while engine.has_work:
        decoding = [(each, len(each.tokens)) for each in streams if each.margins and not each.is_done]
        engine.step()
        missed += sum(len(stream.tokens) == length for stream, length in decoding)
    return missed


def test_who_comes_when_a_step_was_left_out_is_let_in_and_the_work_so_far_is_told(service, model, device):
    with attached(model, service, device) as (engine, client):
        first, second = make_requests(2, (40,), new_tokens=30, seed=10)
        streams = [engine.submit(first)]
        run_until_decoding(engine, streams)
        while not engine._exchange._is_left_out:
            engine.step()
        streams.append(engine.submit(second))
        engine.step()
        assert [len(stream.answer) > 0 for stream in streams] == [True, True]
        # That of the step before the one that let it in.
        assert client.told[-1] == client.next_step - 2
        run_to_end(engine)
        assert_as_plain(model, streams)


def test_what_each_pass_took_is_told_once(service, model, device, monkeypatch):
    known: list[int] = []

    def take_seconds(take=device.take_seconds) -> dict[int, float]:
        taken = take()
        known.extend(taken)
        return taken

    monkeypatch.setattr(device, "take_seconds", take_seconds)
    with attached(model, service, device) as (engine, client):
        requests = make_requests(5, (300, 25, 40), new_tokens=30, seed=4)
        streams = [engine.submit(each) for each in requests]
        run_to_end(engine)
        passes = engine.figures.steps
    assert_as_plain(model, streams)
    assert len(set(known)) == len(known) == len(client.timings)
    assert [each.step for each in client.timings] == sorted(each.step for each in client.timings)
    # A step has several passes, and each of these is told.
    assert len({each.step for each in client.timings}) < len(client.timings) - 10
    if isinstance(device, CountedCpu):
        assert len(client.timings) == passes
        fed = [len(each.request.prompt) + each.request.max_new_tokens - 1 for each in streams]
        # A prompt's last token is fed as one that decodes where it is alone in its chunk; here none is.
        assert sum(each.prefill_tokens + each.decode_sequences for each in client.timings) == sum(fed)
    else:
        # The first of a kind is not timed.
        assert passes - 10 < len(client.timings) < passes


def test_others_find_a_prompt_that_was_computed_while_its_answer_goes_on(service, model, device):
    [request] = make_requests(1, (100,), new_tokens=100, seed=5)
    with attached(model, service, device) as (engine, client):
        other_client = Client(service.address)
        with closing(Engine(model, other_client, is_ahead=True)) as other:
            long = engine.submit(make_requests(1, (40,), new_tokens=120, seed=6)[0])
            # In the midst of steps that are left out: what is computed then has to wait for one.
            run_until_decoding(engine, [long])
            stream = engine.submit(request)
            run_until_decoding(engine, [stream])
            passes = 0
            while other_client.lookup(stream.chain.keys[:6]).blocks_cached < 6:
                engine.step()
                passes += 1
                assert passes <= SOON_PASSES
            found = other.submit(Request(id="other", prompt=request.prompt, max_new_tokens=4))
            run_to_end(other)
            assert not stream.is_done
            assert found.cached.gpu == 96
            run_to_end(engine)
            assert_as_plain(model, [stream, found, long])
        assert client.ahead == []


def test_frames_of_who_has_ended_come_back_while_others_decode(service, model, device):
    with attached(model, service, device) as (engine, client):
        requests = make_requests(9, (20, *[400] * 8), new_tokens=150, seed=7)
        stays, *leaving = streams = [engine.submit(each) for each in requests]
        run_until_decoding(engine, streams)
        # Each at another place among the steps that are left out.
        for place, stream in enumerate(leaving):
            for _ in range(8 + place):
                engine.step()
            held = frames_held(client)
            engine.cancel(stream, "for its frames")
            passes = 0
            # Of its 25 and more; those who stay take some meanwhile.
            while frames_held(client) > held - 15:
                engine.step()
                passes += 1
                assert passes <= SOON_PASSES
        assert not stays.is_done
        run_to_end(engine)
        assert_as_plain(model, [stays])
        assert client.ahead == []


def frames_held(client: HearingClient) -> int:
    """Of the GPU tier, those that sequences have; and those that they gave up, until that is over."""
    return client.operator.usage().tiers[0].frames_used


def test_a_step_that_ends_with_its_first_pass_is_told_ahead_of_its_work(service, model, device, monkeypatch):
    def end_pass(self: Exchange) -> None:
        self._steps.end_pass()
        self._steps.end_step(self._last_step)

    monkeypatch.setattr(Exchange, "end_pass", end_pass)
    with attached(model, service, device) as (engine, client):
        for request in make_requests(2, (60, 25), new_tokens=60, seed=8):
            engine.submit(request)
        run_to_end(engine)
    assert client.ahead != []


@pytest.mark.parametrize(("samples", "beams", "waits_max"), [(3, 1, 0), (1, 3, 1)])
def test_who_goes_on_in_shared_blocks_is_not_kept(service, model, monkeypatch, samples, beams, waits_max):
    waits: list[Exchange] = []

    def wait(exchange: Exchange, wait=Exchange.wait) -> None:
        waits.append(exchange)
        wait(exchange)

    monkeypatch.setattr(Exchange, "wait", wait)
    [request] = make_requests(1, (70,), new_tokens=30, seed=11)
    with attached(model, service, CountedCpu()) as (engine, _):
        stream = engine.submit(replace(request, samples=samples, beams=beams))
        run_to_end(engine)
        assert stream.state is StreamState.FINISHED
    assert len(waits) <= waits_max


def test_an_answer_too_long_for_the_pool_ends_with_the_last_token_that_fits(tmp_path, model):
    with (
        serve(tmp_path, gpu_frames=20, cpu_frames=20) as service,
        attached(model, service, CountedCpu()) as (engine, _),
    ):
        stream = engine.submit(Request(id="r", prompt=(1,) * 310, max_new_tokens=40))
        run_to_end(engine)
        # 320 are fed, and one more comes of them.
        assert (stream.state, len(stream.tokens)) == (StreamState.FINISHED, 321)
