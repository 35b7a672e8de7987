"""What is wrong with a request's body is told by name."""

import json

import pytest

from engine.server.chat import read_chat
from engine.server.completions import read_completion
from engine.server.errors import ApiError
from engine.server.fields import Fields
from engine.server.flags import FlagRefused
from engine.server.limits import Limits

LIMITS = Limits(choices=4, answers_at_once=8, messages=3)
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "m", "prompt": "hi"}


def chat(**changes):
    return read_chat(Fields.parse(json.dumps({**CHAT, **changes}).encode()), LIMITS)


def text(**changes):
    return read_completion(Fields.parse(json.dumps({**TEXT, **changes}).encode()), LIMITS)


def refusal(read, **changes) -> dict:
    with pytest.raises(ApiError) as caught:
        read(**changes)
    assert caught.value.status == 400
    return caught.value.body["error"]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"1", b'{"a": NaN}', b"\xff", b"[" * 100_000, b'{"a":1' + b"0" * 5000 + b"}"]
)
def test_a_body_that_is_no_json_object_is_refused(body):
    with pytest.raises(ApiError, match="JSON"):
        Fields.parse(body)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"model": ""}, "model"),
        ({"model": 3}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "user"}] * 4}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"role": "boss", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "system", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "x", "name": 3}]}, "messages[0].name"),
        ({"messages": [{"role": "assistant", "content": "x", "refusal": 3}]}, "messages[0].refusal"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": "x", "mood": "good"}]}, "messages[0].mood"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls"),
        ({"temperature": 2.5}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 5}, "n"),
        ({"n": 1.5}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"use_beam_search": True, "best_of": 1}, "best_of"),
        ({"use_beam_search": True, "n": 3, "best_of": 2}, "best_of"),
        ({"use_beam_search": True, "best_of": 5}, "best_of"),
        ({"use_beam_search": True, "stream": True}, "stream"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 10**9}, "max_completion_tokens"),
        ({"seed": 1 << 63}, "seed"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"stop": ["a", 1]}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": "x" * 1000}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"speed": 1}}, "stream_options.speed"),
        ({"stream_options": 1}, "stream_options"),
        ({"user": "ü" * 200}, "user"),
        ({"user": "\ud800"}, "user"),
        ({"user": "\ud800", "session": "s"}, "user"),
        ({"user": "u", "session": "ü" * 200}, "session"),
        ({"stop": "\ud800"}, "stop"),
        ({"stop": ["a", "\udfff"]}, "stop"),
        ({"session": "\ud800"}, "session"),
        ({"priority": 9}, "priority"),
        ({"priority": "high"}, "priority"),
        ({"timeout_seconds": 0}, "timeout_seconds"),
        ({"timeout_seconds": 1e9}, "timeout_seconds"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 0}, "logprobs"),
        ({"presence_penalty": False}, "presence_penalty"),
        ({"store": "yes"}, "store"),
        ({"metadata": [1]}, "metadata"),
        ({"service_tier": 1}, "service_tier"),
        ({"safety_identifier": 1}, "safety_identifier"),
        ({"prompt_cache_key": {}}, "prompt_cache_key"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"flavour": "mint"}, "flavour"),
    ],
)
def test_what_is_wrong_is_named(changes, param):
    assert refusal(chat, **changes)["param"] == param


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b'{"n":1' + b"0" * 5000 + b"}", "an integer of more than 4300 digits"),
        (b'{"a": NaN}', "not valid JSON"),
        (b"\xff", "not valid JSON"),
    ],
)
def test_what_is_wrong_with_a_body_is_told(body, told):
    with pytest.raises(ApiError, match=told):
        Fields.parse(body)


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([], "messages must have at least one message."),
        (None, "You must provide a messages parameter."),
        ({}, "messages must be a list of messages, not an object."),
    ],
)
def test_messages_that_are_none(messages, told):
    assert refusal(chat, messages=messages)["message"] == told


def test_a_completion_that_asks_for_likelihoods_is_refused():
    for count in (0, 1):
        assert refusal(text, logprobs=count)["param"] == "logprobs"


@pytest.mark.parametrize("prompt", [None, 3, [], [[]], ["a", 1], [1, "a"], [True], {"a": 1}, [[1], "a"]])
def test_a_prompt_that_is_none_is_refused(prompt):
    assert refusal(text, prompt=prompt)["param"] == "prompt"


def test_prompts_times_samples_are_bounded():
    assert refusal(text, prompt=["a", "b"], n=3)["param"] == "prompt"
    assert text(prompt=["a", "b"], n=2).answers == 4


def test_what_asks_for_nothing_is_taken():
    neutral = {
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "logprobs": False,
        "tools": [],
        "logit_bias": None,
    }
    asked = chat(**neutral, metadata={"a": "b"}, store=True, response_format={"type": "text"}, n=None)
    assert asked.parameters.samples == 1


def test_roles_and_parts_are_read():
    [conversation] = chat(
        messages=[
            {"role": "developer", "content": "be brief"},
            {"role": "assistant", "content": None, "refusal": None, "tool_calls": []},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        ]
    ).prompts
    told = [(each["role"], each["content"]) for each in conversation.messages]
    assert told == [("system", "be brief"), ("assistant", ""), ("user", "ab")]


def test_parameters_as_they_are_given():
    parameters = chat(
        temperature=0.5,
        top_p=0.9,
        seed=-3,
        n=2,
        stop="x",
        max_completion_tokens=9,
        user="u",
        timeout_seconds=3,
    ).parameters
    assert (parameters.sampling.temperature, parameters.sampling.top_p, parameters.sampling.seed) == (
        0.5,
        0.9,
        -3,
    )
    assert (parameters.samples, parameters.stops, parameters.answer_tokens) == (2, ("x",), 9)
    assert (parameters.session, parameters.seconds) == ("u", 3.0)
    assert chat(user="u", session="s").parameters.session == "s"


def test_who_asks_and_how_urgently_is_told_to_the_engine():
    assert (chat().parameters.user, chat().parameters.priority) == ("", 0)
    parameters = chat(user="u", session="s", priority=-3).parameters
    assert (parameters.user, parameters.priority) == ("u", -3)


def test_without_a_seed_each_request_has_its_own():
    assert chat().parameters.sampling.seed != chat().parameters.sampling.seed


def test_limits_are_checked_by_name():
    with pytest.raises(FlagRefused, match=r"^--stop-seconds inf: out of bounds; remedy"):
        Limits(stop_seconds=float("inf"))
    with pytest.raises(
        FlagRefused, match=r"^--request-seconds nan: out of bounds; remedy: more than 0 to 86"
    ):
        Limits(request_seconds=float("nan"))
    with pytest.raises(FlagRefused, match=r"^--body-bytes 0: out of bounds; remedy: 1 to 2147483647$"):
        Limits(body_bytes=0)
    with pytest.raises(FlagRefused, match=r"^--choices 65: out of bounds; remedy: 1 to 64$"):
        Limits(choices=65, answers_at_once=100)
    with pytest.raises(FlagRefused, match=r"^--choices 9: more than the 8 answers that may be under way"):
        Limits(choices=9, answers_at_once=8)
