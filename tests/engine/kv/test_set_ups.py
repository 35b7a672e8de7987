"""The same requests in all five set-ups: the same tokens, whatever is shared, moved or pushed out meanwhile.

With a real model: tests/engine/test_smollm2.py.
"""

import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.engine import Engine
from engine.kv.set_ups import SET_UPS
from engine.model import Llama
from engine.models import load_model_weights
from engine.requests import Request, Stream, StreamState
from engine.sampling import Sampling
from tests.engine.kv.set_up_runs import STEPS_MAX, opened, run

SYSTEM = tuple(random.Random(7).randrange(300) for _ in range(70))


def make_script(seed: int) -> list[list[Request]]:
    draw = random.Random(seed)

    def ask(name: str, tokens: int, new_tokens: int, **how: Any) -> Request:
        prompt = tuple(draw.randrange(300) for _ in range(tokens))
        return Request(id=name, prompt=prompt, max_new_tokens=new_tokens, **how)

    script = []
    for place in range(10):
        sampling = Sampling(temperature=0.9, top_p=0.95, seed=place) if place % 2 else Sampling()
        opening = ask(f"{place}.0", draw.choice((60, 200, 340)), 40, sampling=sampling, session=f"s{place}")
        turns = [replace(opening, prompt=(*SYSTEM, *opening.prompt), turn=1)]
        turns += [ask(f"{place}.1", 20, 20, sampling=sampling, session=f"s{place}", turn=2)] * (place % 3 > 0)
        script.append(turns)
    drawn = Sampling(temperature=1.0, seed=3)
    script.append([ask("samples", 75, 12, samples=3, sampling=drawn)])
    script.append([ask("beams", 50, 10, samples=2, beams=4)])
    return script


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_no_token_differs_between_the_five():
    model, script = Llama(load_model_weights("tiny")), make_script(1)
    runs = {name: run(each, model, script, 1 << 20, 512) for name, each in SET_UPS.items()}
    assert len(runs["full"].answers) == 10 + 6 + 3 + 2
    for name, each in runs.items():
        assert each.answers == runs["full"].answers, name
        assert each.figures.requests_running == each.figures.kv_tokens_held == 0
        assert each.figures.kv_tokens_capacity == 2048
    # What each set-up is for: the first two compute all of it, the next two push nobody out.
    for name in ("contiguous", "paged"):
        assert runs[name].cached_tokens == 0
    for name in ("shared", "tiered", "full"):
        assert runs[name].cached_tokens > 0
        assert runs[name].figures.prompt_tokens_computed < runs["paged"].figures.prompt_tokens_computed
    for name in SET_UPS:
        assert (runs[name].figures.preemptions > 0) == (name == "full")


@pytest.mark.parametrize("name", ["shared", "tiered"])
def test_in_a_pool_too_small_for_all_none_is_pushed_out_and_none_is_stuck(name):
    """Prompts that share blocks, samples and beams that part, requests that are cancelled, by seed."""
    draw, model = random.Random(name), Llama(load_model_weights("tiny"))
    with (
        opened(SET_UPS[name], 60 * 8192) as client,
        closing(Engine(model, client, set_up=SET_UPS[name])) as engine,
    ):
        streams: list[Stream] = []
        for _ in range(STEPS_MAX):
            if len(streams) < 60:
                samples, beams = draw.choice([(1, 1), (1, 1), (3, 1), (2, 4)])
                prompt = (*SYSTEM, *(draw.randrange(300) for _ in range(draw.randint(1, 150))))
                request = Request(
                    id=str(len(streams)),
                    prompt=prompt[draw.choice((0, 0, 40)) :],
                    max_new_tokens=draw.randint(1, 120),
                    samples=samples,
                    beams=beams,
                )
                stream = engine.submit(request)
                streams += [stream, *stream.followers]
            if draw.random() < 0.02:
                engine.cancel(draw.choice(streams), "the test")
            engine.step()
            if len(streams) >= 60 and not engine.has_work:
                break
        assert {each.state for each in streams} == {StreamState.FINISHED, StreamState.CANCELLED}
        engine.rest()
        figures = engine.figures
    assert (figures.preemptions, figures.kv_tokens_held, figures.requests_waiting) == (0, 0, 0)
