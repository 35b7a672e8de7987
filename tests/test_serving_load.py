"""The loads of the serving benchmark, without servers: what is asked, in which order, how it is timed."""

import json
from collections.abc import AsyncIterator

import httpx
import pytest

from bench.serving_bench import Bench
from bench.serving_load import Job, arrivals, run_closed, run_open
from bench.serving_server import OWN_SERVICE, SETUPS, SetUp
from bench.serving_text import Prompts, made_talks, talks
from engine.server.tiny_words import TinyWords

# ---- what is asked ----


def test_talks_are_the_same_for_a_seed_and_half_of_them_share_a_system_prompt():
    made = made_talks(6, 3, seed=4)
    assert made == made_talks(6, 3, seed=4)
    assert made != made_talks(6, 3, seed=5)
    assert [bool(talk.system) for talk in made] == [True, False] * 3
    assert len({talk.system for talk in made if talk.system}) == 1
    assert all(len(talk.messages) == 3 for talk in made)


def test_without_recorded_texts_there_are_made_ones(monkeypatch):
    monkeypatch.setattr("bench.serving_text.find_texts", lambda: None)
    assert talks(4, 2, seed=1) == made_talks(4, 2, seed=1)


def test_prompts_have_exactly_so_many_tokens_and_begin_each_in_another_way(monkeypatch):
    monkeypatch.setattr("bench.serving_text.find_texts", lambda: None)
    prompts = Prompts(TinyWords())
    taken = [prompts.take(count) for count in (1, 40, 40, 3000, 40)]
    assert [len(each) for each in taken] == [1, 40, 40, 3000, 40]
    assert len({each[:16] for each in taken[1:]}) == 4


def test_arrivals_are_those_of_the_seed_and_come_at_the_rate():
    times = arrivals(2000, 5.0, seed=3)
    assert times == arrivals(2000, 5.0, seed=3)
    assert times != arrivals(2000, 5.0, seed=4)
    assert times == sorted(times)
    assert times[-1] == pytest.approx(400, rel=0.1)


@pytest.mark.parametrize("name", SETUPS)
def test_each_set_up_has_its_own_flags(name, tmp_path):
    flags = SetUp(name=name, model="tiny", memory_bytes=1 << 20).flags(tmp_path)
    assert flags[flags.index("--kv") + 1] == name
    assert ("--own-service" in flags) == (name in OWN_SERVICE)
    assert ("--reserve-tokens" in flags) == (name == "contiguous")


def test_memory_is_counted_in_whole_frames():
    bench = Bench(quick=True)
    assert bench.memory_bytes(17) == bench.memory_bytes(32) == 2 * bench.memory_bytes(16)


# ---- how it is asked and timed ----


class Events(httpx.AsyncByteStream):
    def __init__(self, lines: list[str]) -> None:
        self._lines = lines

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for line in self._lines:
            yield f"data: {line}\n\n".encode()


class FakeServer(httpx.AsyncBaseTransport):
    """Answers with two pieces, the second of which says how many requests came before."""

    def __init__(self) -> None:
        self.bodies: list[dict] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(await request.aread())
        number = len(self.bodies)
        self.bodies.append(body)
        is_chat = request.url.path == "/v1/chat/completions"

        def choice(text: str, finish: str | None) -> str:
            told = {"delta": {"content": text}} if is_chat else {"text": text}
            return json.dumps({"choices": [{**told, "finish_reason": finish}], "usage": None})

        usage = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
        end = json.dumps({"choices": [], "usage": usage})
        lines = [choice("a", None), choice(str(number), None), choice("", "length"), end, "[DONE]"]
        return httpx.Response(200, stream=Events(lines))


def test_a_closed_loop_sends_each_turn_with_what_was_answered_before():
    server = FakeServer()
    jobs = [
        Job(turns=("one", "two"), system="be kind", answer_tokens=5, session="s"),
        Job(turns=((1, 2, 3),), answer_tokens=7),
    ]
    run = run_closed("http://fake", "tiny", jobs, 1, server)
    first, second, third = server.bodies
    assert [message["content"] for message in first["messages"]] == ["be kind", "one"]
    assert [message["content"] for message in second["messages"]] == ["be kind", "one", "a0", "two"]
    assert first["session"] == second["session"] == "s"
    assert (third["prompt"], third["max_tokens"], third["temperature"]) == ([1, 2, 3], 7, 0)
    assert "session" not in third
    assert [[each.text for each in job] for job in run.jobs] == [["a0", "a1"], ["a2"]]
    [*_, last] = run.answers
    assert (last.prompt_tokens, last.cached_tokens, last.completion_tokens) == (9, 4, 2)
    assert last.finish == "length"
    assert len(last.gaps) == 1
    assert 0 < last.first_token_seconds <= last.first_token_seconds + last.gaps[0] <= last.seconds


def test_an_open_loop_begins_each_job_at_its_own_time():
    server = FakeServer()
    jobs = [
        Job(turns=((2,),), answer_tokens=1, starts_at=0.06),
        Job(turns=((1,),), answer_tokens=1, starts_at=0.0),
    ]
    run = run_open("http://fake", "tiny", jobs, server)
    assert [body["prompt"] for body in server.bodies] == [[1], [2]]
    assert run.seconds >= 0.06
    assert [each.text for each in run.answers] == ["a1", "a0"]


@pytest.mark.parametrize(
    ("status", "lines", "told"),
    [
        (429, [], "status 429"),
        (200, ['{"error": {"code": "deadline_exceeded"}}'], "deadline_exceeded"),
        (200, ['{"choices": [{"text": "a", "finish_reason": null}], "usage": null}'], "cut off"),
    ],
)
def test_an_answer_that_is_none_ends_the_benchmark(status, lines, told):
    transport = httpx.MockTransport(lambda request: httpx.Response(status, stream=Events(lines)))
    with pytest.raises(SystemExit, match=told):
        run_closed("http://fake", "tiny", [Job(turns=((1,),), answer_tokens=1)], 1, transport)
