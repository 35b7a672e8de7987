"""The frame of the benchmarks: what is told of a row, and what a goal that is not met ends in."""

import json
import sys
import time
from collections.abc import Callable, Sequence

import pytest

from bench.progress import signs_of_life
from bench.report import Row, main, make_row

GOOD = make_row("good", "us", [1.0, 2.0, 3.0], at_most=5)
BAD = make_row("bad", "us", [7.0], at_most=5)
NO_GOAL = make_row("no goal", "us", [7.0])


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs one with these rows; returns its exit status."""

    def run(rows: Sequence[Row], *flags: str) -> int:
        monkeypatch.setattr(sys, "argv", ["bench", *flags])
        try:
            main("none", "", lambda quick: rows)
        except SystemExit as end:
            return int(end.code or 0)
        return 0

    return run


def test_goals_that_are_met_are_a_success(bench, capsys) -> None:
    assert bench([GOOD, NO_GOAL]) == 0
    told = capsys.readouterr()
    assert "goal <= 5 us: met" in told.out
    assert told.err == ""


def test_a_goal_that_is_not_met_is_none_and_every_row_is_told(bench, capsys) -> None:
    assert bench([BAD, GOOD]) == 1
    told = capsys.readouterr()
    assert "goal <= 5 us: NOT MET" in told.out
    assert "good" in told.out
    assert told.err == "bench.none: 1 goal was not met\n"
    assert bench([BAD, GOOD, BAD], "--json") == 1
    told = capsys.readouterr()
    rows = [json.loads(line) for line in told.out.splitlines()]
    assert [(row["name"], row["met"]) for row in rows] == [("bad", False), ("good", True), ("bad", False)]
    assert told.err == "bench.none: 2 goals were not met\n"


def test_a_sign_of_life_comes_where_nobody_sees_a_terminal(capsys) -> None:
    told = ""
    end = time.monotonic() + 20
    with signs_of_life("bench.none", 0.01):
        while not told and time.monotonic() < end:
            told = capsys.readouterr().err
    assert told.startswith("bench.none: still measuring, after 0 s\n")
