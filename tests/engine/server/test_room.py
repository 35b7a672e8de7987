"""What memory can never hold is refused before it is begun; what it can hold is computed to its end."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import openai
import pytest

from engine.acceptance import find_answer_room
from engine.requests import Request
from engine.scheduling.promises import Promises
from engine.server.loading import Loaded
from engine.server.tiny_words import TinyWords
from kvstore.demo.children import Service
from tests.engine.server.conftest import Running, running
from tests.engine.test_engine import serve

FRAMES = 20
CAPACITY = FRAMES * 16
# One token each.
PROMPT = [1 + at % 200 for at in range(250)]
# The last token of an answer is not fed to the model.
LONGEST = CAPACITY - len(PROMPT) + 1
ASKED = {"model": "tiny", "prompt": PROMPT, "seed": 1}


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serve(tmp_path_factory.mktemp("kv"), gpu_frames=FRAMES, cpu_frames=60) as service:
        yield service


class Endless(TinyWords):
    """Nothing ends an answer but its length."""

    eos_ids: frozenset[int] = frozenset()


@pytest.fixture(scope="module")
def server(loaded: Loaded, tight: Service) -> Iterator[Running]:
    with running(Loaded(loaded.model, Endless()), tight) as server:
        yield server


def steps(server: Running) -> int:
    return server.server.bridge.figures.steps


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_answer_that_memory_can_never_hold_is_refused_at_once_with_its_numbers(
    server, client, field, is_streamed
):
    before = steps(server)
    extra = {"extra_body": {field: LONGEST + 1}}
    with pytest.raises(openai.BadRequestError, match=rf"at most {LONGEST}\. Please set {field}") as caught:
        client.completions.create(**ASKED, **extra, stream=is_streamed)
    assert (caught.value.code, caught.value.param) == ("memory_exceeded", field)
    assert f"{field} is {LONGEST + 1}, but behind the {len(PROMPT)} tokens" in str(caught.value)
    assert steps(server) == before


def test_a_prompt_that_memory_can_never_hold_is_refused_by_name(client):
    with pytest.raises(openai.BadRequestError, match="never hold the 321 tokens of its prompt") as caught:
        client.completions.create(model="tiny", prompt=[1] * 321)
    assert (caught.value.code, caught.value.param) == ("memory_exceeded", "prompt")


def test_the_longest_answer_that_memory_can_hold_is_computed(client):
    completion = client.completions.create(**ASKED, max_tokens=LONGEST, temperature=0)
    assert (completion.choices[0].finish_reason, completion.usage.completion_tokens) == ("length", LONGEST)


def test_answers_that_only_fit_one_by_one_are_computed(client):
    """They are swapped out and in, so each of them has all of the room."""
    completion = client.completions.create(**ASKED, max_tokens=LONGEST, n=3)
    assert [choice.finish_reason for choice in completion.choices] == ["length"] * 3
    assert completion.usage.completion_tokens == 3 * LONGEST


def test_answers_that_share_the_last_frame_of_all_end_with_their_first_token(client):
    """To write to it each needs a copy, and there is no frame for it: each pushed out the others for ever."""
    asked = {"model": "tiny", "prompt": [1] * (CAPACITY - 10), "n": 2, "seed": 1}
    with pytest.raises(openai.BadRequestError, match="at most 1 for each of 2 at once"):
        client.completions.create(**asked, max_tokens=2)
    completion = client.completions.create(**asked)
    assert [choice.finish_reason for choice in completion.choices] == ["length"] * 2
    assert completion.usage.completion_tokens == 2
    # A frame less, and there is.
    asked["prompt"] = [1] * (CAPACITY - 26)
    assert client.completions.create(**asked, max_tokens=27).usage.completion_tokens == 2 * 27


def test_beams_have_to_fit_at_once(client):
    """Each waits for all others with every token."""
    # The prompt's 15 full blocks once, and one of the other 5 for each.
    longest = 16 * 16 - len(PROMPT) + 1
    search = {"use_beam_search": True, "best_of": 3}
    with pytest.raises(openai.BadRequestError, match=f"at most {longest} for each of 3 at once") as caught:
        client.completions.create(**ASKED, max_tokens=longest + 1, extra_body=search)
    assert (caught.value.code, caught.value.param) == ("memory_exceeded", "max_tokens")
    completion = client.completions.create(**ASKED, max_tokens=longest, extra_body=search)
    assert completion.usage.completion_tokens == longest
    with pytest.raises(openai.BadRequestError, match="250 tokens of its prompt and 6 answers at once"):
        client.completions.create(**ASKED, extra_body={**search, "best_of": 6})


def test_where_no_number_is_named_an_answer_ends_with_the_room(client):
    """By default a chat's answer has 512 tokens."""
    content = "x" * 250
    asked: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": content}]}
    completion = client.chat.completions.create(**asked, temperature=0)
    assert completion.choices[0].finish_reason == "length"
    assert completion.usage.total_tokens == CAPACITY + 1
    text = client.completions.create(model="tiny", prompt=[1] * (CAPACITY - 2), temperature=0)
    assert (text.choices[0].finish_reason, text.usage.completion_tokens) == ("length", 3)


@pytest.mark.parametrize(
    ("samples", "shares", "tokens"),
    [
        (1, True, LONGEST),
        # The prompt's 15 full blocks once, and 2 of the other 5 for each; or 10 for each.
        (2, True, 17 * 16 - 250 + 1),
        (2, False, 10 * 16 - 250 + 1),
        (6, True, 15 * 16 - 250 + 1),
    ],
)
def test_where_nobody_is_preempted_all_answers_fit_at_once(samples, shares, tokens):
    promises = Promises(16, shares=shares)
    pool: dict[str, Any] = {"block_tokens": 16, "frame_count": FRAMES, "promises": promises}
    assert find_answer_room(250, samples=samples, beams=1, **pool).tokens_max == tokens
    assert find_answer_room(250, samples=1, beams=samples, **pool).tokens_max == tokens
    if tokens > 0:
        request = Request(id="r", prompt=(1,) * 250, max_new_tokens=tokens, samples=samples)
        longer = replace(request, max_new_tokens=tokens + 1)
        assert promises.blocks_of(request) <= FRAMES < promises.blocks_of(longer)
