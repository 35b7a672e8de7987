"""What a load comes to in the serving benchmark: counts, shares, bounds, rows, table, plots, exit status."""

import json
import math

import pytest

from bench import serving
from bench.serving_chats import compare
from bench.serving_load import Answer, Run
from bench.serving_measured import Measured, differing, percentile
from bench.serving_plots import check_plots, draw
from bench.serving_rows import COLUMNS, rows_of, table
from bench.serving_server import SETUPS, read_figures
from bench.serving_throughput import bound

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


def test_requests_at_once_are_those_of_a_server_at_work():
    looks = [
        NOTHING | {"completion_tokens_total": ended, "requests_running": running, "requests_waiting": waiting}
        for ended, running, waiting in ((0, 2, 4), (3, 4, 2), (6, 6, 1), (9, 9, 0))
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


def test_the_folder_of_plots_is_made_or_refused_before_anything_is_measured(tmp_path, monkeypatch):
    for _ in range(2):
        check_plots(tmp_path / "new")
        assert (tmp_path / "new").is_dir()
    (tmp_path / "file").write_text("")
    for name, why in (
        ("file", "it is no folder; remedy: name another"),
        ("file/x", "Not a directory; remedy: a folder that can be made"),
        ("none/x", "No such file or directory; remedy: a folder that can be made"),
    ):
        with pytest.raises(SystemExit, match=f"^--plots {tmp_path / name}: {why}$"):
            check_plots(tmp_path / name)
    assert not (tmp_path / "none").exists()
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(SystemExit, match="nothing may be written there"):
        check_plots(tmp_path / "new")


def test_an_answer_that_differs_ends_in_status_1(monkeypatch, capsys):
    def part(bench):
        yield from compare("a load", {name: measured(answer(name)) for name in SETUPS})

    monkeypatch.setattr(serving, "PARTS", {"chats": part})
    with pytest.raises(SystemExit) as end:
        serving.main(["--quick", "--json", "--part", "chats"])
    assert end.value.code == 1
    [row] = map(json.loads, capsys.readouterr().out.splitlines())
    assert (row["value"], row["met"]) == (4, False)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_part_with_real_servers_has_what_it_computes_and_no_answer_that_differs(capsys):
    serving.main(["--quick", "--json", "--part", "prompt"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    [saved] = [row for row in rows if row["met"] is not None]
    # 400 tokens of a system prompt are 25 whole blocks: all that can be found is found.
    assert saved["value"] == saved["reference"] == 7 * 400
    assert not [row["name"] for row in rows if "differ" in row["name"]]
