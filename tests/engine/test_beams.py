"""Beam search: the answers of `transformers`, over forks in a pool that may be too small for all beams."""

from collections.abc import Iterator

import pytest
import torch

from engine.engine import EngineError
from engine.requests import Request, Stream, StreamState
from kvstore.client import Client
from kvstore.demo.children import Service
from tests.engine.runner import to_transformers
from tests.engine.test_engine import attach, model, run_to_end, serve

__all__ = ["model"]

PROMPT = tuple(range(1, 40))
LENGTH = 24


@pytest.fixture(scope="module")
def service(tmp_path_factory) -> Iterator[Service]:
    with serve(tmp_path_factory.mktemp("kv"), gpu_frames=64, cpu_frames=64) as service:
        yield service


@pytest.fixture(scope="module")
def reference(model):
    return to_transformers(model.weights)


@torch.inference_mode()
def expected(reference, beams: int, stop_ids: list[int], answers: int) -> list[list[int]]:
    output = reference.generate(
        torch.tensor([PROMPT]),
        attention_mask=torch.ones(1, len(PROMPT), dtype=torch.int64),
        max_new_tokens=LENGTH,
        do_sample=False,
        num_beams=beams,
        num_return_sequences=answers,
        early_stopping=False,
        length_penalty=1.0,
        pad_token_id=0,
        eos_token_id=stop_ids or None,
    )
    return [cut(sequence[len(PROMPT) :].tolist(), stop_ids) for sequence in output]


def cut(tokens: list[int], stop_ids: list[int]) -> list[int]:
    ends = [at for at, token in enumerate(tokens) if token in stop_ids]
    return tokens[: ends[0] + 1] if ends else tokens


def search(beams: int, stop_ids: list[int], answers: int, **changes) -> Request:
    return Request(
        id="b",
        prompt=PROMPT,
        max_new_tokens=LENGTH,
        beams=beams,
        samples=answers,
        stop_ids=frozenset(stop_ids),
        **changes,
    )


def run_all(engine, asked: Request) -> list[Stream]:
    leader = engine.submit(asked)
    streams = [leader, *leader.followers]
    run_to_end(engine)
    assert [stream.state for stream in streams] == [StreamState.FINISHED] * len(streams)
    return streams


def frames_used(service: Service) -> int:
    with Client(service.address) as client:
        return client.operator.usage().tiers[0].frames_used


@pytest.mark.parametrize(("beams", "answers"), [(2, 1), (4, 4), (5, 2)])
def test_the_answers_are_those_of_transformers(service, model, reference, beams, answers):
    with attach(service, model) as (engine, counts):
        streams = run_all(engine, search(beams, [], answers))
    assert [stream.answer for stream in streams] == expected(reference, beams, [], answers)
    assert counts.wrong == 0
    assert frames_used(service) == 0


def test_answers_that_the_model_ends_are_compared_with_longer_ones(service, model, reference):
    # Tokens that come up on the way, so that some beams end early.
    likely = expected(reference, 4, [], 4)
    stop_ids = [likely[0][5], likely[-1][9]]
    with attach(service, model) as (engine, _):
        streams = run_all(engine, search(4, stop_ids, 4))
    answers = [stream.answer for stream in streams]
    assert answers == expected(reference, 4, stop_ids, 4)
    assert len({len(answer) for answer in answers}) > 1


def test_beams_share_what_they_have_in_common(service, model):
    with attach(service, model) as (engine, _):
        leader = engine.submit(search(6, [], 1))
        used = []
        while not leader.is_done:
            engine.step()
            used.append(frames_used(service))
    # The prompt's two full blocks once; of the rest each beam has at most three blocks.
    assert 6 < max(used) <= 2 + 6 * 3 < 6 * 4


@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_pool_too_small_for_all_beams_makes_it_slower_and_not_other(tmp_path, model, reference, is_ahead):
    with (
        serve(tmp_path, gpu_frames=8, cpu_frames=64) as service,
        attach(service, model, is_ahead=is_ahead) as (engine, counts),
    ):
        streams = run_all(engine, search(6, [], 3))
        assert frames_used(service) == 0
    assert [stream.answer for stream in streams] == expected(reference, 6, [], 3)
    assert counts.wrong == 0


def test_a_search_that_is_cancelled_leaves_nothing_whenever_that_is(service, model):
    with attach(service, model) as (engine, _):
        for steps in range(12):
            leader = engine.submit(search(4, [], 2))
            for _ in range(steps):
                engine.step()
            engine.cancel(leader, "nobody wants it")
            run_to_end(engine)
            assert [leader.state, leader.followers[0].state] == [StreamState.CANCELLED] * 2
            assert frames_used(service) == 0
            assert not engine._speaking._searches


def test_a_search_outlives_its_service(tmp_path, model, reference):
    with serve(tmp_path, gpu_frames=64, cpu_frames=64) as service, attach(service, model) as (engine, _):
        leader = engine.submit(search(4, [], 2))
        while (
            leader.state is not StreamState.SEARCHING
            or engine._speaking._searches[leader].beams[0].answer[5:] == []
        ):
            engine.step()
        service.end()
        with serve(tmp_path, gpu_frames=64, cpu_frames=64):
            run_to_end(engine)
    assert [leader.answer, leader.followers[0].answer] == expected(reference, 4, [], 2)


def test_a_search_that_can_never_fit_fails_with_all_its_answers(tmp_path, model):
    with serve(tmp_path, gpu_frames=3, cpu_frames=8) as service, attach(service, model) as (engine, _):
        leader = engine.submit(search(2, [], 2))
        told = []
        while not leader.is_done:
            told += engine.step()
        assert {leader, *leader.followers} <= set(told)
        assert leader.followers[0].reason == leader.reason != ""
        run_to_end(engine)
        assert frames_used(service) == 0


def test_what_can_not_be_searched_is_refused(service, model):
    with attach(service, model) as (engine, _):
        with pytest.raises(EngineError, match="too few"):
            engine.submit(search(2, [], 3))
        with pytest.raises(EngineError, match="from 1 to 64"):
            engine.submit(search(65, [], 3))
