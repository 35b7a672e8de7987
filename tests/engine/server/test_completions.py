"""Completions of text and of tokens."""

import pytest

from engine.plain import answer_plainly
from engine.server.loading import Loaded

pytestmark = pytest.mark.usefixtures("service")

PROMPT = "once in the north there"
ASKED = {"model": "tiny", "prompt": PROMPT, "max_tokens": 12, "temperature": 0}


def texts(completion) -> list[str]:
    return [choice.text for choice in completion.choices]


def plain(loaded: Loaded, tokens: list[int], count: int) -> str:
    return loaded.words.decode(answer_plainly(loaded.model, tokens, count, loaded.words.eos_ids).tokens)


def test_text_goes_on_as_the_plain_run_does(client, loaded: Loaded):
    completion = client.completions.create(**ASKED)
    tokens = loaded.words.encode(PROMPT)
    assert texts(completion) == [plain(loaded, tokens, 12)]
    assert completion.object == "text_completion"
    assert completion.choices[0].finish_reason == "length"
    assert completion.usage.prompt_tokens == len(tokens)


def test_tokens_are_taken_as_they_are(client, loaded: Loaded):
    tokens = [*b"the", 300, 0xC3, 5]
    assert texts(client.completions.create(**{**ASKED, "prompt": tokens})) == [plain(loaded, tokens, 12)]


def test_several_prompts_are_answered_in_order(client, loaded: Loaded):
    prompts = ["first one", "then another"]
    completion = client.completions.create(**{**ASKED, "prompt": prompts}, n=2)
    expected = [plain(loaded, loaded.words.encode(prompt), 12) for prompt in prompts]
    assert texts(completion) == [text for text in expected for _ in range(2)]
    assert completion.usage.completion_tokens == 48


def test_it_streams(client):
    [whole] = texts(client.completions.create(**ASKED))
    stream = client.completions.create(**ASKED, stream=True, stream_options={"include_usage": True})
    pieces = list(stream)
    assert "".join(piece.choices[0].text for piece in pieces if piece.choices) == whole
    assert pieces[-2].choices[0].finish_reason == "length"
    assert pieces[-1].usage.completion_tokens == 12


def test_sixteen_tokens_where_no_number_is_named(client):
    completion = client.completions.create(model="tiny", prompt="abc", temperature=0)
    assert completion.usage.completion_tokens == 16 or completion.choices[0].finish_reason == "stop"


def test_a_beam_search_tells_its_likeliest_answers(client):
    """That they are the likeliest is shown in tests/engine/test_beams.py."""
    search = {"use_beam_search": True, "best_of": 4}
    two = client.completions.create(**ASKED, n=2, extra_body=search)
    one = client.completions.create(**ASKED, extra_body=search)
    first, second = texts(two)
    assert first != second
    assert texts(one) == [first]
    assert two.usage.completion_tokens == 24
    assert {choice.finish_reason for choice in two.choices} == {"length"}
