"""Paths, refusals and figures; who may come in."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest

from engine.model import Llama
from engine.models import TINY
from engine.server.limits import Limits
from engine.server.loading import Loaded
from engine.server.tiny_words import TinyWords
from engine.weights import random_weights
from tests.engine.server.conftest import Running, running

pytestmark = pytest.mark.usefixtures("service")

KEY = "k-0123456789abcdef"
CONTEXT = 128
LIMITS = Limits(
    body_bytes=20_000, choices=3, answers_at_once=4, answer_tokens=100, receive_seconds=0.5, stop_seconds=5.0
)
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def small(service) -> Iterator[Running]:
    """A server of a model with a short context, and small limits."""
    model = Llama(random_weights(replace(TINY, context_length=CONTEXT), 1))
    with running(Loaded(model, TinyWords()), service, LIMITS) as server:
        yield server


@pytest.fixture
def client(small) -> Iterator[Any]:
    with small.client() as client:
        yield client


def error_of(response: httpx.Response) -> dict:
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return body["error"]


def post(server: Running, path: str = "/v1/chat/completions", **options) -> httpx.Response:
    return httpx.post(server.url + path, timeout=30, **options)


def test_models_are_listed_and_found_by_name(client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "kvstore"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("huge")


def test_an_unknown_model_is_not_found(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="huge", messages=HELLO)
    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"


@pytest.mark.parametrize("is_streamed", [False, True])
def test_too_long_a_prompt_is_refused_with_its_numbers(client, is_streamed):
    messages = [{"role": "user", "content": "x" * CONTEXT}]
    with pytest.raises(openai.BadRequestError, match="maximum context length is 128 tokens") as caught:
        client.chat.completions.create(model="tiny", messages=messages, stream=is_streamed)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="100 in the completion"):
        client.completions.create(model="tiny", prompt="x" * 50, max_tokens=100)


def test_without_a_number_a_chats_answer_may_fill_the_context(client):
    messages = [{"role": "user", "content": "xy" * 45}]
    completion = client.chat.completions.create(model="tiny", messages=messages, seed=1)
    assert completion.usage.total_tokens == CONTEXT or completion.choices[0].finish_reason == "stop"
    assert completion.usage.prompt_tokens > 90


def test_without_a_number_a_chats_answer_ends_at_the_default_and_may_be_longer_by_name(loaded, service):
    with running(loaded, service, Limits(answer_tokens_default=7)) as server, server.client() as client:
        asked = {"model": "tiny", "messages": HELLO, "temperature": 0}
        [choice] = (short := client.chat.completions.create(**asked)).choices
        assert (short.usage.completion_tokens, choice.finish_reason) == (7, "length")
        longer = client.chat.completions.create(**asked, max_tokens=12)
        assert longer.usage.completion_tokens == 12
        assert longer.choices[0].message.content.startswith(choice.message.content)


def test_tokens_out_of_range_and_empty_prompts_are_refused(client):
    with pytest.raises(openai.BadRequestError, match="0 to 319"):
        client.completions.create(model="tiny", prompt=[1, 320])
    with pytest.raises(openai.BadRequestError, match="empty"):
        client.completions.create(model="tiny", prompt="")


def test_what_is_wrong_is_told_in_openais_form(small):
    response = post(small, json={"model": "tiny", "messages": HELLO, "temperature": 9})
    assert response.status_code == 400
    assert error_of(response)["param"] == "temperature"


@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        (b"{", {"content-type": "application/json"}, 400),
        (b"{}", {"content-type": "text/plain"}, 400),
        (b"{}", {}, 400),
        (b"{}", {"content-type": "application/json", "content-encoding": "gzip"}, 415),
        (b"{}", {"content-type": "application/json", "content-encoding": "identity"}, 400),
        (b" " * 20_001, {"content-type": "application/json"}, 413),
        (iter([b" " * 8000] * 5), {"content-type": "application/json"}, 413),
    ],
)
def test_bodies_that_are_not_taken(small, content, headers, status):
    response = post(small, content=content, headers=headers)
    assert response.status_code == status
    error_of(response)


@pytest.mark.parametrize(
    "changes", [{"model": "\ud800"}, {"messages": [{"role": "user", "content": "\ud800"}]}, {"\ud800": 1}]
)
def test_half_a_surrogate_pair_is_no_text(small, changes):
    body = json.dumps({"model": "tiny", "messages": HELLO, **changes})
    response = post(small, content=body, headers={"content-type": "application/json"})
    assert response.status_code in (400, 404)
    error_of(response)


@pytest.mark.parametrize("number", ["1" + "0" * 400, "-1" + "0" * 4000, "1e400", "-1e400"])
@pytest.mark.parametrize("field", ["n", "seed", "max_tokens", "temperature", "timeout_seconds"])
def test_numbers_that_no_float_holds_are_out_of_range(small, caplog, field, number):
    body = json.dumps({"model": "tiny", "messages": HELLO})[:-1] + f', "{field}": {number}}}'
    response = post(small, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert error_of(response)["param"] == field
    assert not caplog.records


def test_paths_and_methods_that_are_not_there(small):
    assert error_of(httpx.get(small.url + "/v2"))["message"] == "Not Found: GET /v2"
    response = httpx.get(small.url + "/v1/chat/completions")
    assert response.status_code == 405
    error_of(response)


def test_more_answers_than_are_taken_at_once_are_told_to_come_back(small, client):
    asked = {"model": "tiny", "messages": HELLO, "max_tokens": 90, "stream": True, "logit_bias": {}}
    with client.chat.completions.create(**asked, n=3) as stream:
        next(iter(stream))
        with pytest.raises(openai.RateLimitError) as caught:
            client.chat.completions.create(model="tiny", messages=HELLO, n=2)
        assert client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=2).choices
    assert caught.value.response.headers["retry-after"] == "1"
    assert caught.value.code == "rate_limit_exceeded"


def test_a_client_that_comes_back_is_served(small):
    asked = {"model": "tiny", "messages": HELLO, "max_tokens": 60, "n": 3}
    with (
        small.client(max_retries=10) as client,
        client.chat.completions.create(**asked, stream=True) as first,
    ):
        next(iter(first))
        with small.client(max_retries=10) as other:
            first.close()
            assert len(other.chat.completions.create(**asked).choices) == 3


def test_health_and_metrics(small, client):
    client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=5)
    health = httpx.get(small.url + "/health")
    assert (health.status_code, health.json()) == (200, {"status": "ok"})
    lines = httpx.get(small.url + "/metrics").text.splitlines()
    figures = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert float(figures['kvstore_engine_requests_total{path="/v1/chat/completions",status="200"}']) >= 1
    assert float(figures["kvstore_engine_completion_tokens_total"]) >= 5
    assert float(figures["kvstore_engine_first_token_seconds_count"]) >= 1
    assert (figures["kvstore_engine_attached"], figures["kvstore_engine_answers_under_way"]) == ("1.0", "0.0")


def test_without_a_key_only_loopback_names_are_answered(small):
    assert httpx.get(small.url + "/metrics", headers={"host": "evil.example"}).status_code == 403
    for host in ("localhost", "127.0.0.1:99", "[::1]:8000"):
        assert httpx.get(small.url + "/v1/models", headers={"host": host}).status_code == 200
    for host in ("[", "[]", ":80", "localhost:x", "127.0.0.1.evil.example"):
        assert httpx.get(small.url + "/v1/models", headers={"host": host}).status_code == 403


@pytest.fixture(scope="module")
def locked(loaded, service) -> Iterator[Running]:
    with running(loaded, service, api_key=KEY) as server:
        yield server


def test_with_a_key_it_has_to_be_brought(locked, caplog):
    with locked.client(api_key=KEY) as client:
        assert client.models.list().data
    for key in ("wrong", KEY + "x", KEY[:-1]):
        with locked.client(api_key=key) as client, pytest.raises(openai.AuthenticationError) as caught:
            client.models.list()
        assert caught.value.code == "invalid_api_key"
    assert httpx.get(locked.url + "/metrics").status_code == 401
    assert httpx.get(locked.url + "/health").status_code == 200
    assert KEY not in caplog.text


def test_a_bug_is_told_as_an_error_and_logged_without_the_prompt(small, client, caplog, monkeypatch):
    def fail(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(type(small.server.workshop.sessions), "split", fail)
    with pytest.raises(openai.InternalServerError, match="has failed"):
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "a secret"}])
    assert "ZeroDivisionError" in caplog.text
    assert "secret" not in caplog.text
    monkeypatch.undo()
    assert small.server.admission.answers == 0
    assert client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=2).choices


def test_events_are_one_json_object_each_and_end_with_done(small):
    asked = {"model": "tiny", "messages": HELLO, "max_tokens": 5, "stream": True}
    response = post(small, json=asked)
    assert response.headers["content-type"].startswith("text/event-stream")
    *events, done, end = response.text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    assert {json.loads(event.removeprefix("data: "))["object"] for event in events} == {
        "chat.completion.chunk"
    }
