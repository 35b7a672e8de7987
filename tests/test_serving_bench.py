"""The serving benchmark without its servers: what is asked, how it is timed and counted, what comes of it."""

import json
import math
from collections.abc import AsyncIterator

import httpx
import pytest

from bench import serving
from bench.serving_bench import Bench
from bench.serving_chats import compare
from bench.serving_load import Answer, Job, Run, arrivals, run_closed, run_open
from bench.serving_measured import Measured, differing, percentile
from bench.serving_plots import check_plots, draw
from bench.serving_rows import COLUMNS, rows_of, table
from bench.serving_server import OWN_SERVICE, SETUPS, SetUp, read_figures
from bench.serving_text import Prompts, made_talks, talks
from bench.serving_throughput import bound
from engine.server.tiny_words import TinyWords

NOTHING = {
    "prompt_tokens_computed_total": 0.0,
    "completion_tokens_total": 0.0,
    "preemptions_total": 0.0,
    "requests_running": 0.0,
    "requests_waiting": 0.0,
    "kv_tokens_held": 0.0,
    "kv_tokens_live": 0.0,
    "kv_tokens_capacity": 100.0,
}


def answer(text: str = "a", seconds: float = 0.5, cached: int = 0) -> Answer:
    return Answer(
        text=text,
        finish="length",
        prompt_tokens=40,
        cached_tokens=cached,
        completion_tokens=3,
        first_token_seconds=seconds,
        gaps=(0.1, 0.3),
        seconds=seconds + 0.4,
    )


def measured(*answers: Answer, watched=(), computed: int = 40, seconds: float = 2.0) -> Measured:
    after = NOTHING | {"prompt_tokens_computed_total": float(computed), "preemptions_total": 2.0}
    return Measured(
        Run((answers,), seconds), NOTHING, after, watched, bytes_swapped=5_000_000, cpu_seconds=3.0
    )


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


# ---- what it comes to ----


def test_a_percentile_is_the_nearest_rank():
    samples = [float(each) for each in range(100, 0, -1)]
    assert [percentile(samples, percent) for percent in (0, 50, 95, 99, 100)] == [1, 50, 95, 99, 100]
    assert percentile([3.0, 1.0], 50) == 1.0
    assert math.isnan(percentile([], 50))


def test_what_was_found_computed_and_said_is_counted():
    load = measured(answer(cached=30), answer(cached=10), computed=40)
    assert load.hit_rate == 0.5
    assert load.computed_share == 0.5
    assert load.tokens_per_second == 3.0
    assert load.preemptions == 2
    assert load.cpu_per_token == 0.5
    assert load.gaps == [0.1, 0.3, 0.1, 0.3]


def test_requests_at_once_are_those_while_others_wait():
    looks = [
        NOTHING | {"requests_running": running, "requests_waiting": waiting}
        for running, waiting in ((1, 0), (4, 2), (6, 1), (9, 0))
    ]
    assert measured(answer(), watched=looks).at_once == 5
    assert measured(answer(), watched=looks[:1] + looks[3:]).at_once == 9


def test_the_share_of_live_tokens_is_that_of_a_server_at_work():
    def look(ended, waiting, held, live):
        names = ("completion_tokens_total", "requests_waiting", "kv_tokens_held", "kv_tokens_live")
        return NOTHING | dict(zip(names, (ended, waiting, held, live), strict=True))

    filling, working, emptying = look(0, 3, 80, 0), look(5, 3, 80, 72), look(9, 0, 40, 1)
    load = measured(answer(), watched=[filling, working, emptying])
    assert (load.live_share, load.used_share) == (0.9, 0.72)
    # Nobody ever waits: all of it counts.
    assert measured(answer(), watched=[emptying, emptying]).live_share == 1 / 40


def test_answers_differ_by_what_is_said_and_not_by_when_or_whence():
    one = measured(answer("a"), answer("b"))
    assert differing(one, measured(answer("a", seconds=9, cached=40), answer("b"))) == 0
    assert differing(one, measured(answer("a"), answer("c"))) == 1


def test_the_bound_of_throughput_takes_the_saved_prefill_from_the_time():
    assert bound(measured(answer(), answer(), seconds=4.0), saved=1.0) == pytest.approx(6 / 3.0)


def test_figures_are_added_up_over_their_labels():
    text = "# TYPE kvstore_engine_requests counter\n"
    text += 'kvstore_engine_requests_total{path="/a"} 2\nkvstore_engine_requests_total{path="/b"} 3\n'
    assert read_figures(text) == {"requests_total": 5.0}


def test_each_column_is_a_row_and_a_figure_of_the_table(tmp_path):
    load = measured(
        answer(), answer(seconds=1.5), watched=[NOTHING | {"kv_tokens_held": 10, "requests_running": 1}]
    )
    rows = {row.name: row for row in rows_of("load", "paged", load)}
    assert set(rows) == {f"load, paged: {column.name}" for column in COLUMNS}
    assert rows["load, paged: time to the first token, p99"].value == 1.5
    assert rows["load, paged: time per token, p50"].value == pytest.approx(100)
    assert rows["load, paged: bytes swapped"].value == 5
    told = table("load", {"paged": load, "full": load}).splitlines()
    assert [line.split()[0] for line in told] == ["load", "at", "paged", "full"]
    drawn = list(draw("a load, open", {"paged": load, "full": load}, tmp_path))
    assert [path.name for path in drawn] == ["serving-a-load-open.svg", "serving-a-load-open.png"]
    assert all(path.stat().st_size for path in drawn)


def test_plots_without_a_folder_are_refused_before_anything_is_measured(tmp_path):
    with pytest.raises(SystemExit, match="no such folder; remedy: make it first"):
        check_plots(tmp_path / "none")


def test_an_answer_that_differs_ends_in_status_1(monkeypatch, capsys):
    def part(bench):
        yield from compare("a load", {name: measured(answer(name)) for name in SETUPS})

    monkeypatch.setattr(serving, "PARTS", {"chats": part})
    with pytest.raises(SystemExit) as end:
        serving.main(["--quick", "--json", "--part", "chats"])
    assert end.value.code == 1
    [row] = map(json.loads, capsys.readouterr().out.splitlines())
    assert (row["value"], row["met"]) == (4, False)
