"""The GPU check where there is no GPU: what it says then, and that nothing of it is dead.

Its parts run on the tests' own libcuda, whose devices are host memory, under the real `cuda-bindings`; torch
computes on the CPU. The rows are made of what they should be, and their figures mean nothing.
"""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import bench.gpu_check
from bench.gpu_check import NO_GPU, PARTS, check_all, main, run_part
from bench.gpu_demo import rows_of
from bench.gpu_part import MEASURES
from bench.gpu_place import NoGpu, Place
from bench.gpu_sharing import overlap
from bench.report import ROOT, make_row
from kvstore.cuda.bindings import load_driver
from kvstore.cuda.driver import CudaUnavailable
from tests.cuda.stub import build_stub

ROW = '{"name": "a", "value": 1.0, "unit": "x", "spread": 0, "reference": null, "ratio": null, '
ROW += '"ratio_spread": null, "goal": null, "met": null}'


def script(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def test_without_a_gpu_it_says_so_and_measures_nothing(monkeypatch, capsys):
    try:
        load_driver()
    except CudaUnavailable:
        pass
    else:
        pytest.skip("there is a driver on this machine")
    monkeypatch.setattr(sys, "argv", ["gpu_check"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == NO_GPU
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("bench.gpu_check: no GPU to check: ")
    assert told.err.endswith("; nothing was measured\n")


def test_rows_of_all_parts_are_told_kept_and_written_as_json(monkeypatch, capsys, tmp_path):
    rows = [make_row("good", "us", [1.0], at_most=5), make_row("bad", "us", [9.0], at_most=5)]
    monkeypatch.setattr(bench.gpu_check, "find_place", lambda: Place("cuda:0", "GPU-1", "Fake H1"))
    monkeypatch.setattr(bench.gpu_check, "check_all", lambda parts, flags: rows)
    monkeypatch.setattr(bench.report, "RESULTS", tmp_path)
    output = tmp_path / "rows.json"
    monkeypatch.setattr(sys, "argv", ["gpu_check", "--save", "--output", str(output)])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 1
    assert "goal <= 5 us: NOT MET" in capsys.readouterr().out
    written = json.loads(output.read_text())
    assert [row["met"] for row in written["rows"]] == [True, False]
    assert written["machine"].startswith("Fake H1, ")
    with (tmp_path / "gpu.csv").open() as file:
        assert [row["name"] for row in csv.DictReader(file)] == ["good", "bad"]


def test_the_parts_are_those_that_there_are():
    assert [part.name for part in PARTS] == list(MEASURES)


def test_a_part_that_comes_to_its_end_says_so():
    rows = list(run_part("p", script(f"print('words'); print('{ROW}')"), 60))
    assert [(row.name, row.met) for row in rows] == [("a", None), ("p: came to its end (1: yes)", True)]


def test_a_part_that_hangs_is_killed_with_what_it_started_and_its_rows_stay():
    """What it started stands in a session of its own, and holds its output open."""
    rows = list(run_part("p", ["sh", "-c", f"echo '{ROW}'; setsid -w sleep 1000; true"], 1.0))
    assert [(row.name, row.met) for row in rows] == [("a", None), ("p: came to its end (1: yes)", False)]


def test_a_part_that_dies_shows_its_last_words_and_the_others_are_run(capfd):
    rows = list(run_part("p", script("import sys; sys.exit('no such luck')"), 60))
    assert [(row.value, row.met) for row in rows] == [(0.0, False)]
    assert "p| no such luck" in capfd.readouterr().err


def test_who_comes_when_the_time_is_over_is_not_begun():
    assert [row.met for row in check_all(PARTS, [], budget=0)] == [False] * len(PARTS)


def test_two_rates_that_add_up_to_one_overlap_not_at_all():
    assert overlap(1.0, 1.0) == 1.0
    assert overlap(0.5, 0.5) == 0.0


def test_a_demo_with_a_wrong_block_or_answer_does_not_meet_its_goals():
    turn = {"turn": 2, "equal": True, "near_tie": False, "ttft_ms": 10.0, "ttft_plain_ms": 40.0}
    report = {"turns": [turn, turn], "blocks_wrong": 0, "blocks_verified": 7}
    assert {row.met for row in rows_of(report)} == {True, None}
    report = {"turns": [turn, {**turn, "equal": False}], "blocks_wrong": 1, "blocks_verified": 7}
    assert [row.met for row in rows_of(report)] == [False, True, False, True, None]


def test_a_torch_without_cuda_is_told_from_a_machine_without_a_gpu(tmp_path: Path):
    found = run_on_stub(tmp_path, "from bench.gpu_place import find_place; find_place()")
    assert found.returncode
    assert "NoGpu: there is GPU-a0a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a0a0 (Stub GPU), but torch" in found.stderr
    assert issubclass(NoGpu, Exception)


def test_every_part_runs_on_a_driver_in_host_memory_and_its_bytes_are_right(tmp_path: Path):
    """All but the demo, which tests/test_demo.py runs."""
    names = [part.name for part in PARTS if part.name != "demo"]
    done = run_on_stub(tmp_path, "-m", "bench.gpu_part", *names, "--quick", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    wrong = [row["name"] for row in rows if row["met"] is False and row["unit"] != "GB/s"]
    assert wrong == []
    names_of_rows = "\n".join(row["name"] for row in rows)
    for words in (
        "another process sees wrong",
        "SIGKILL of its maker",
        "they overlap, to the GPU",
        "attention, decode",
        "quantize_blocks and back",
        "blocks right after GPU, CPU, GPU",
        "blocks right after disk, a restart",
        "swap both ways at once",
        "decode attention",
        "beside swaps at half rate",
    ):
        assert words in names_of_rows
    assert all(row["value"] > 0 for row in rows if row["unit"] in ("GB/s", "ms", "/s"))


def run_on_stub(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    build_stub(folder)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *(words if words[0] == "-m" else ("-c", *words))]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=100)
