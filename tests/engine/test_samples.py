"""Several samples of one request, over the real service: the prompt is computed and held once."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from engine.engine import Engine
from engine.model import Llama
from engine.plain import answer_plainly
from engine.requests import NO_SEQUENCE, Request, Stream, StreamState
from engine.sampling import Choice, Sampling
from kvstore.client import Client
from kvstore.demo.children import Service
from kvstore.v1 import kvstore_pb2 as pb
from tests.engine.talk import Talk, granted, kinds
from tests.engine.test_engine import attach, model, run_to_end, serve

__all__ = ["model"]

PROMPT = tuple(range(1, 72))  # Four blocks, and seven tokens of a fifth.
HOT = Sampling(temperature=1.0, seed=5)


@pytest.fixture(scope="module")
def service(tmp_path_factory) -> Iterator[Service]:
    with serve(tmp_path_factory.mktemp("kv"), gpu_frames=64, cpu_frames=64) as service:
        yield service


def request(**changes) -> Request:
    return Request(**{"id": "r", "prompt": PROMPT, "max_new_tokens": 12, "samples": 4, **changes})


def run_all(engine: Engine, asked: Request) -> list[Stream]:
    streams = all_of(engine.submit(asked))
    run_to_end(engine)
    return streams


def all_of(leader: Stream) -> list[Stream]:
    return [leader, *leader.followers]


def frames_used(service: Service) -> int:
    with Client(service.address) as client:
        return client.operator.usage().tiers[0].frames_used


def test_greedy_samples_are_all_the_plain_answer(service: Service, model: Llama):
    expected = answer_plainly(model, PROMPT, 12).tokens
    with attach(service, model) as (engine, counts):
        streams = run_all(engine, request())
    assert [stream.answer for stream in streams] == [expected] * 4
    assert (counts.wrong, counts.unknown) == (0, 0)


def test_samples_differ_and_each_is_what_it_would_be_in_another_batch(service: Service, model: Llama):
    with attach(service, model) as (engine, _):
        together = [stream.answer for stream in run_all(engine, request(sampling=HOT))]
        others = [engine.submit(request(id=f"o{seed}", samples=1, prompt=PROMPT[seed:])) for seed in (1, 2)]
        again = [stream.answer for stream in run_all(engine, request(sampling=HOT))]
    assert len({tuple(answer) for answer in together}) == 4
    assert again == together
    assert all(other.state is StreamState.FINISHED for other in others)


def test_samples_share_the_prompts_blocks_and_have_tails_of_their_own(service: Service, model: Llama):
    with attach(service, model) as (engine, _):
        streams = all_of(engine.submit(request(sampling=HOT)))
        while min(len(stream.margins) for stream in streams) < 3:
            engine.step()
        tables = [engine._client.tables.table(stream.sequence) for stream in streams]
        used = frames_used(service)
        run_to_end(engine)
    assert len({tuple(table[:4]) for table in tables}) == 1
    assert len({table[4] for table in tables}) == 4
    # Four blocks of the prompt, and a fifth for each.
    assert used == 8
    assert frames_used(service) == 0


def test_a_prompt_that_fills_its_last_block_is_shared_whole(service: Service, model: Llama):
    prompt = PROMPT[:64]
    with attach(service, model) as (engine, _):
        streams = run_all(engine, request(prompt=prompt))
    assert [stream.answer for stream in streams] == [answer_plainly(model, prompt, 12).tokens] * 4


def test_samples_end_each_by_itself_also_with_their_first_token(service: Service, model: Llama):
    with attach(service, model) as (engine, _):
        free = [stream.answer for stream in run_all(engine, request(sampling=HOT))]
        first = [answer[0] for answer in free]
        stopped = run_all(engine, request(sampling=HOT, stop_ids=frozenset(first[:2])))
        single = run_all(engine, request(sampling=HOT, max_new_tokens=1))
    assert [stream.answer[0] for stream in single] == first
    assert [stream.answer for stream in stopped[:2]] == [[token] for token in first[:2]]
    assert all(stream.state is StreamState.FINISHED for stream in stopped)
    assert frames_used(service) == 0


@pytest.mark.parametrize("is_ahead", [False, True])
def test_many_samples_in_a_pool_too_small_are_swapped_and_come_out_the_same(
    service: Service, tmp_path, model: Llama, is_ahead: bool
):
    asked = [request(id=f"r{at}", prompt=PROMPT[at:], sampling=HOT, max_new_tokens=40) for at in range(3)]
    with attach(service, model) as (wide, _):
        expected = [[stream.answer for stream in run_all(wide, each)] for each in asked]
    with (
        serve(tmp_path, gpu_frames=20, cpu_frames=64) as small,
        attach(small, model, is_ahead=is_ahead) as (tight, counts),
    ):
        streams = [all_of(tight.submit(each)) for each in asked]
        run_to_end(tight)
    assert [[stream.answer for stream in family] for family in streams] == expected
    assert sum(stream.preemptions for family in streams for stream in family) > 0
    assert counts.wrong == 0


@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_cancelled_stream_gives_back_all_it_has_whenever_it_is_cancelled(
    service: Service, model: Llama, is_ahead: bool
):
    with closing(Engine(model, Client(service.address), is_ahead=is_ahead)) as engine:
        for steps in range(8):
            streams = all_of(engine.submit(request(prompt=PROMPT * 4, samples=1 + steps % 2 * 3)))
            for _ in range(steps):
                engine.step()
            for stream in streams:
                engine.cancel(stream, "nobody wants it")
            run_to_end(engine)
            assert [stream.state for stream in streams] == [StreamState.CANCELLED] * len(streams)
            assert frames_used(service) == 0


def test_one_sample_of_several_is_cancelled_and_the_others_go_on(service: Service, model: Llama):
    with attach(service, model) as (engine, _):
        expected = [stream.answer for stream in run_all(engine, request(sampling=HOT))]
        streams = all_of(engine.submit(request(sampling=HOT)))
        while not streams[2].margins:
            engine.step()
        engine.cancel(streams[0], "its text is complete")
        run_to_end(engine)
    assert streams[0].state is StreamState.CANCELLED
    assert [stream.answer for stream in streams[1:]] == expected[1:]


def test_what_can_never_fit_fails_with_all_its_samples(tmp_path, model: Llama):
    with serve(tmp_path, gpu_frames=4, cpu_frames=4) as service, attach(service, model) as (engine, _):
        streams = all_of(engine.submit(request()))
        told = [stream for _ in range(5) for stream in engine.step()]
    assert [stream.state for stream in streams] == [StreamState.FAILED] * 4
    assert set(told) == set(streams)
    assert streams[3].reason == streams[0].reason != ""


def test_a_fork_that_finds_its_parent_away_is_admitted_by_key():
    talk = Talk()
    leader = talk.scheduler.submit(Request(id="r", prompt=tuple(range(33)), max_new_tokens=8, samples=2))
    [follower] = leader.followers
    [allocate] = talk.step(granted)
    assert allocate.allocate.token_count == 33  # Not the room of the whole block: a fork goes by it.
    leader.computed = 33
    for stream in (leader, follower):
        stream.add(Choice(7, 1.0))
    talk.scheduler.fork(leader)

    def away(operation: pb.Operation) -> pb.Result:
        if operation.WhichOneof("kind") == "fork":
            return pb.Result(fork=pb.ForkResponse(outcome=pb.OUTCOME_LATER))
        return granted(operation)

    assert kinds(talk.step(away))[:2] == ["commit", "fork"]
    assert follower.sequence == NO_SEQUENCE
    allocate = talk.step(granted)[-1]
    assert list(allocate.allocate.block_keys) == follower.chain.keys[:2]
    assert follower.state is StreamState.RUNNING


def test_samples_count_as_many_as_they_are():
    talk = Talk(running_max=4)
    wide = talk.scheduler.submit(Request(id="w", prompt=tuple(range(20)), max_new_tokens=8, samples=4))
    narrow = talk.submit(20, first=100)
    assert kinds(talk.step(granted)) == ["allocate"]
    assert (wide.state, narrow.state) == (StreamState.RUNNING, StreamState.QUEUED)
