"""The engine over the real service, which runs in a process of its own, with a tiny random model.

Pools are far too small for the work, so everything is swapped, evicted and loaded on the way; answers must
be those of the plain run all the same, and every block that comes back is compared with its digest.
"""

import random
import signal
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.digests import Counts, Digests
from engine.engine import Engine, EngineError
from engine.model import Llama
from engine.models import TINY, load_model_weights
from engine.plain import answer_plainly
from engine.requests import Request, Stream, StreamState
from kvstore.client import Client
from kvstore.demo.children import Service
from kvstore.demo.worker import Line, Worker

BLOCK_TOKENS = 16
FRAME_BYTES = 8192
DISK_BYTES = 64 << 20
STEPS_MAX = 5000


@pytest.fixture(scope="module")
def model() -> Iterator[Llama]:
    """On one thread: the work is too small to be shared, and waiting for another core takes longer."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Llama(load_model_weights("tiny"))
    torch.set_num_threads(threads)


@contextmanager
def serve(folder: Path, *, gpu_frames: int, cpu_frames: int) -> Iterator[Service]:
    service = Service(
        "service",
        folder,
        gpu_bytes=gpu_frames * FRAME_BYTES,
        cpu_bytes=cpu_frames * FRAME_BYTES,
        disk_bytes=DISK_BYTES,
    )
    try:
        service.until_answered()
        yield service
    finally:
        service.end()


@contextmanager
def attach(service: Service, model: Llama, *, is_ahead: bool = False) -> Iterator[tuple[Engine, Counts]]:
    layout = model.config.kv_layout(block_tokens=BLOCK_TOKENS, dtype=model.weights.dtype)
    digests = Digests(layout.block_bytes)
    with closing(Engine(model, Client(service.address), digests=digests, is_ahead=is_ahead)) as engine:
        yield engine, digests.counts


def make_requests(count: int, tokens: Sequence[int], new_tokens: int = 20, seed: int = 0) -> list[Request]:
    draw = random.Random(seed)
    return [
        Request(
            id=f"r{index}",
            prompt=tuple(draw.randrange(TINY.vocab_size) for _ in range(tokens[index % len(tokens)])),
            max_new_tokens=new_tokens,
            session=f"s{index}",
            turn=1,
        )
        for index in range(count)
    ]


def run_to_end(*engines: Engine) -> None:
    for _ in range(STEPS_MAX):
        for engine in engines:
            engine.step()
        if not any(engine.has_work for engine in engines):
            return
    pytest.fail(f"not done after {STEPS_MAX} steps")


def run_alone(engine: Engine, service: Service, request: Request) -> Stream:
    """And waits until what it leaves behind has been moved down."""
    stream = engine.submit(request)
    run_to_end(engine)
    service.rest()
    return stream


def assert_as_plain(model: Llama, streams: Sequence[Stream]) -> None:
    for stream in streams:
        request = stream.request
        assert stream.state is StreamState.FINISHED
        assert stream.answer == answer_plainly(model, request.prompt, request.max_new_tokens).tokens, (
            request.id
        )


def assert_proven(*counts: Counts) -> None:
    for each in counts:
        assert (each.wrong, each.unknown) == (0, 0)
    assert sum(each.verified for each in counts) > 0


@pytest.mark.parametrize("is_ahead", [False, True])
def test_many_requests_in_a_pool_too_small_answer_as_without_tiers(tmp_path, model, is_ahead):
    # The first four take 52 frames, and 56 in the end.
    with (
        serve(tmp_path, gpu_frames=54, cpu_frames=80) as service,
        attach(service, model, is_ahead=is_ahead) as (engine, counts),
    ):
        streams = [engine.submit(each) for each in make_requests(10, (299, 120, 340, 40))]
        run_to_end(engine)
        assert_as_plain(model, streams)
        assert_proven(counts)
        assert sum(stream.preemptions for stream in streams) > 0


def test_what_its_steps_took_is_what_drop_or_swap_is_decided_by(tmp_path, model):
    with (
        serve(tmp_path, gpu_frames=12, cpu_frames=24) as service,
        attach(service, model) as (engine, _),
        Client(service.address) as client,
    ):
        for request in make_requests(16, tokens=[90, 61, 40, 75], new_tokens=40, seed=3):
            engine.submit(request)
        run_to_end(engine)
        swaps = list(client.operator.list_decisions(kind="swap"))
    weighed = [decision for decision in swaps if "beta_seconds" in decision.inputs]
    # The first few go by length, until enough steps have prefilled.
    assert weighed
    for decision in weighed:
        costs = decision.chosen_cost_seconds, decision.other_cost_seconds
        assert costs[0] <= costs[1] * 1.06 or decision.reason == "no room below the GPU"
        assert decision.inputs["pass_tokens"] <= 256
        assert decision.inputs["gpu_price"] >= 1


def test_a_turn_finds_what_earlier_turns_have_left_wherever_it_is(tmp_path, model):
    with serve(tmp_path, gpu_frames=48, cpu_frames=64) as service, attach(service, model) as (engine, counts):
        first = [run_alone(engine, service, each) for each in make_requests(5, (300,))]
        second = []
        for stream in reversed(first):
            prompt = (*stream.tokens, *range(1, 50))
            request = Request(id=f"{stream.request.id}+", prompt=prompt, max_new_tokens=10, turn=2)
            second.append(run_alone(engine, service, request))
        assert_as_plain(model, [*first, *second])
        assert_proven(counts)
        for tier in ("gpu", "cpu", "disk"):
            assert sum(getattr(stream.cached, tier) for stream in second) > 0, tier


def test_two_engines_share_a_pool_that_is_too_small_for_either(tmp_path, model):
    with (
        serve(tmp_path, gpu_frames=42, cpu_frames=200) as service,
        attach(service, model) as (one, one_counts),
        attach(service, model) as (other, other_counts),
    ):
        streams = [one.submit(each) for each in make_requests(3, (299, 340), seed=1)]
        streams += [other.submit(each) for each in make_requests(3, (340, 299), seed=2)]
        run_to_end(one, other)
        assert_as_plain(model, streams)
        assert_proven(one_counts, other_counts)


def test_what_can_never_fit_fails_and_nothing_else(tmp_path, model):
    with serve(tmp_path, gpu_frames=20, cpu_frames=20) as service, attach(service, model) as (engine, _):
        [large, small] = [engine.submit(each) for each in make_requests(2, (400, 60))]
        grown = engine.submit(Request(id="grown", prompt=(1,) * 310, max_new_tokens=40))
        run_to_end(engine)
        assert large.state is StreamState.FAILED
        assert "25 blocks" in large.reason
        # What it has of its answer it keeps.
        assert grown.state is StreamState.FINISHED
        assert len(grown.answer) == 11
        assert_as_plain(model, [small])
        with pytest.raises(EngineError, match="more than the model's"):
            engine.submit(Request(id="long", prompt=(1,) * 4000, max_new_tokens=200))


def test_priority_goes_first_at_the_cost_of_the_rest(tmp_path, model):
    with serve(tmp_path, gpu_frames=44, cpu_frames=80) as service, attach(service, model) as (engine, counts):
        low = [engine.submit(each) for each in make_requests(2, (330,), new_tokens=30)]
        while not all(stream.margins for stream in low):
            engine.step()
        [urgent] = make_requests(1, (200,), seed=3)
        urgent_stream = engine.submit(
            Request(id="urgent", prompt=urgent.prompt, max_new_tokens=5, priority=1)
        )
        while not urgent_stream.is_done:
            engine.step()
        assert not any(stream.is_done for stream in low)
        run_to_end(engine)
        assert_as_plain(model, [*low, urgent_stream])
        assert_proven(counts)


def test_under_high_pressure_the_low_priority_goes_before_anybody_is_short(tmp_path, model):
    # Both together never take more than 42 frames of 44, and are above the watermark from 40 on.
    with serve(tmp_path, gpu_frames=44, cpu_frames=80) as service, attach(service, model) as (engine, counts):
        one, other = make_requests(2, (300,), new_tokens=30)
        streams: list[Stream] = []
        for _ in range(STEPS_MAX):
            for asked in (one, replace(other, priority=1)):
                if not any(each.request.id == asked.id and not each.is_done for each in streams):
                    streams.append(engine.submit(asked))
            engine.step()
            if any(each.preemptions for each in streams):
                break
        run_to_end(engine)
        low, urgent = ([each for each in streams if each.request.priority == at] for at in (0, 1))
        assert sum(each.preemptions for each in low) == 1
        assert not any(each.preemptions for each in urgent)
        assert_as_plain(model, [low[-1], urgent[-1]])
        assert_proven(counts)


def test_a_long_prompt_among_endless_short_ones_starts_and_ends(tmp_path, model):
    with (
        serve(tmp_path, gpu_frames=260, cpu_frames=300) as service,
        attach(service, model) as (engine, _),
    ):
        endless = (each for seed in range(99) for each in make_requests(50, (60, 30, 90), seed=seed))
        short: list[Stream] = []

        def step() -> None:
            while sum(not each.is_done for each in short) < 20:
                short.append(engine.submit(next(endless)))
            engine.step()

        for _ in range(30):
            step()
        [request] = make_requests(1, (4000,), new_tokens=5, seed=9)
        long, steps = engine.submit(request), 0
        while not long.is_done:
            step()
            steps += 1
            # 16 run, each by a chunk and 20 tokens, and as many could be before it by then.
            assert steps <= 2 * (16 + 20) + 16 + 5
        assert long.preemptions == 0
        assert_as_plain(model, [long, *[each for each in short if each.is_done][::16]])


@pytest.mark.parametrize(("end", "is_ahead"), [(signal.SIGTERM, False), (signal.SIGKILL, True)])
def test_the_engine_outlives_its_service(tmp_path, model, end, is_ahead):
    with (
        serve(tmp_path, gpu_frames=60, cpu_frames=80) as service,
        attach(service, model, is_ahead=is_ahead) as (engine, counts),
    ):
        before = [engine.submit(each) for each in make_requests(2, (300,), seed=4)]
        run_to_end(engine)
        service.rest()
        streams = [engine.submit(each) for each in make_requests(4, (299, 200), seed=5)]
        while sum(len(stream.margins) for stream in streams) < 10:
            engine.step()
        service.end(end)
        with serve(tmp_path, gpu_frames=60, cpu_frames=80):
            run_to_end(engine)
            again = engine.submit(before[0].request)
            run_to_end(engine)
            assert engine.attachments == 2
            assert_as_plain(model, [*before, *streams, again])
            assert_proven(counts)
            # 18 of its 19 blocks: the last holds the last token.
            assert again.cached.disk == 288


def receive(worker: Worker, event: str) -> Line:
    while (line := worker.receive())["event"] != event:
        pass
    return line


def test_what_a_killed_engine_has_committed_is_found_by_the_next(tmp_path, model):
    [request] = make_requests(1, (600,), new_tokens=40, seed=6)
    line = {"request": "r", "prompt": request.prompt, "max_new_tokens": 40, "session": "s", "turn": 1}
    with serve(tmp_path, gpu_frames=60, cpu_frames=80) as service:
        first = Worker("first", tmp_path, model="tiny", address=service.address)
        try:
            first.send(line)
            while receive(first, "token")["count"] < 3:
                pass
            told = [each for each in first.kill() if each["event"] == "digests"]
        finally:
            first.end()
        second = Worker("second", tmp_path, model="tiny", address=service.address)
        try:
            second.send({"digests": [pair for each in told for pair in each["digests"]]})
            second.send(line)
            admitted = receive(second, "admitted")
            finished = receive(second, "finished")
            second.finish()
        finally:
            second.end()
    # All of the prompt's 37 full blocks were committed before the first token was told.
    assert admitted["cached_tokens"] == 592
    assert finished["tokens"] == answer_plainly(model, request.prompt, 40).tokens
