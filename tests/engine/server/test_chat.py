"""Chat completions as the official client sees them, over the real service."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.plain import answer_plainly
from engine.server.loading import Loaded
from kvstore.client import Client

pytestmark = pytest.mark.usefixtures("service")

README = Path(__file__).parents[3] / "README.md"
USER = {"role": "user", "content": "tell me of the north sea, and of the rain there"}
ASKED = {"model": "tiny", "messages": [USER], "max_tokens": 24}


def joined(stream) -> tuple[dict[int, str], dict[int, str], list]:
    """Texts and ends by answer, and what the stream has used."""
    texts: dict[int, str] = {}
    finishes: dict[int, str] = {}
    usages = []
    for chunk in stream:
        if chunk.usage:
            usages.append(chunk.usage)
        for choice in chunk.choices:
            assert choice.index not in finishes
            if choice.index not in texts:
                assert (choice.delta.role, choice.delta.content) == ("assistant", "")
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            if choice.finish_reason:
                finishes[choice.index] = choice.finish_reason
    return texts, finishes, usages


def text_of(completion) -> list[str]:
    return [choice.message.content for choice in completion.choices]


def test_a_greedy_answer_is_the_plain_one(client, loaded: Loaded):
    completion = client.chat.completions.create(**ASKED, temperature=0)
    prompt = loaded.words.encode(loaded.words.render([USER]))
    tokens = answer_plainly(loaded.model, prompt, 24, loaded.words.eos_ids).tokens
    assert text_of(completion) == [loaded.words.decode(tokens)]
    assert completion.object == "chat.completion"
    assert completion.choices[0].finish_reason == "length"
    assert completion.choices[0].message.role == "assistant"
    usage = completion.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(prompt), 24)
    assert usage.total_tokens == len(prompt) + 24


def test_a_stream_is_the_whole_answer_in_pieces(client):
    asked = {**ASKED, "temperature": 0.8, "seed": 5, "n": 3}
    whole = client.chat.completions.create(**asked)
    stream = client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    texts, finishes, [usage] = joined(stream)
    assert [texts[index] for index in range(3)] == text_of(whole)
    assert finishes == dict.fromkeys(range(3), "length")
    assert usage.completion_tokens == whole.usage.completion_tokens == 3 * 24
    _, _, usages = joined(client.chat.completions.create(**asked, stream=True))
    assert usages == []


def test_the_same_seed_says_the_same_and_another_does_not(client):
    first, again = (client.chat.completions.create(**ASKED, seed=7) for _ in range(2))
    other = client.chat.completions.create(**ASKED, seed=8)
    assert text_of(first) == text_of(again) != text_of(other)


def test_answers_to_one_prompt_differ_and_compute_it_once(client):
    messages = [{"role": "system", "content": "of n samples " * 20}, USER]
    completion = client.chat.completions.create(**{**ASKED, "messages": messages}, n=4, seed=1)
    assert [choice.index for choice in completion.choices] == [0, 1, 2, 3]
    assert len(set(text_of(completion))) == 4
    assert completion.usage.completion_tokens == 4 * 24


def frames_used(server) -> int:
    with Client(server.service.address) as client:
        return client.operator.usage().tiers[0].frames_used


def test_answers_to_one_prompt_hold_its_blocks_once(server, client, loaded: Loaded):
    messages = [{"role": "user", "content": "share this. " * 60}]
    blocks = len(loaded.words.encode(loaded.words.render(messages))) // 16
    stream = client.chat.completions.create(
        model="tiny", messages=messages, n=4, max_tokens=200, seed=2, stream=True
    )
    used = []
    with stream:
        for _ in stream:
            used.append(frames_used(server))
            if len(used) == 40:
                break
    # Each has a tail of its own of at most 200 tokens; four prompts would be far more.
    assert blocks < max(used) <= blocks + 4 * 14
    assert 4 * blocks > blocks + 4 * 14


def test_a_system_prompt_is_computed_once_for_all(client):
    system = {"role": "system", "content": "an assistant that is honest and short. " * 20}
    first, second = (
        client.chat.completions.create(
            model="tiny", messages=[system, {"role": "user", "content": text}], max_tokens=4
        ).usage
        for text in ("one thing", "another one")
    )
    assert first.prompt_tokens_details.cached_tokens == 0
    shared = second.prompt_tokens_details.cached_tokens
    assert shared % 16 == 0
    assert shared > 0.9 * second.prompt_tokens


@pytest.fixture(scope="module")
def spoken(server) -> Iterator[str]:
    """A greedy answer, to choose stop strings from."""
    with server.client() as client:
        yield text_of(client.chat.completions.create(**ASKED, temperature=0))[0]


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_stop_string_ends_the_answer_before_itself(client, spoken, is_streamed):
    stop = spoken[6:10]
    asked = {**ASKED, "temperature": 0, "stop": ["never said", stop]}
    if is_streamed:
        texts, finishes, _ = joined(client.chat.completions.create(**asked, stream=True))
        told = (texts[0], finishes[0])
    else:
        [choice] = client.chat.completions.create(**asked).choices
        told = (choice.message.content, choice.finish_reason)
    assert told == (spoken[: spoken.index(stop)], "stop")


def test_one_answer_may_stop_while_others_go_on(client):
    asked = {**ASKED, "n": 3, "seed": 5}
    free = text_of(client.chat.completions.create(**asked))
    stop = free[1][8:12]
    assert stop not in free[0] + free[2]
    stopped = client.chat.completions.create(**asked, stop=stop)
    assert text_of(stopped) == [free[0], free[1][: free[1].index(stop)], free[2]]
    assert [choice.finish_reason for choice in stopped.choices] == ["length", "stop", "length"]


def test_the_readmes_example_runs_and_finds_its_first_turn(server):
    [code] = [
        each for each in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL) if "OpenAI" in each
    ]
    for before, after in (("http://127.0.0.1:8000", server.url), ("smollm2", "tiny")):
        assert before in code
        code = code.replace(before, after)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert run.returncode == 0, run.stderr
    told = re.findall(r"(\d+) of (\d+) tokens were cached", run.stdout.decode(errors="replace"))
    first, second = [(int(cached), int(prompt)) for cached, prompt in told]
    # At temperature 1 an answer may be over with its first token.
    assert 0 < first[1] // 16 * 16 <= second[0] < second[1]
