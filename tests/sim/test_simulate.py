"""`kvstore simulate`: exit status, the story, and the same in several processes."""

import json

import pytest
from typer.testing import CliRunner, Result

from kvstore.cli.main import app
from tests.sim.test_planted import GivesAFrameToTwo


def simulate(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["simulate", *arguments])


def test_runs_that_pass_end_with_status_0() -> None:
    result = simulate("--fuzz", "--seeds", "3", "--steps", "40")
    assert result.exit_code == 0, result.output
    assert "3 runs" in result.output
    assert "0 failed" in result.output


def test_a_failure_ends_with_status_1_and_its_story(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvstore.sim.stores.Store", GivesAFrameToTwo)
    monkeypatch.setattr("kvstore.sim.shrink.RUNS_MAX", 20)
    result = simulate("--fuzz", "--seeds", "40", "--seed", "2", "--steps", "60")
    assert result.exit_code == 1
    assert "the story of GPU frame" in result.output
    assert "again: kvstore simulate --fuzz --seed" in result.output
    # It stops when they are many.
    assert "5 failed" in result.output


def test_processes_share_the_seeds_and_each_says_what_it_did() -> None:
    apart = simulate("--fuzz", "--seeds", "3", "--steps", "20", "--json", "--jobs", "2")
    alone = simulate("--fuzz", "--seeds", "3", "--steps", "20", "--json")
    assert (apart.exit_code, alone.exit_code) == (0, 0)
    outcomes = [sorted(map(json.dumps, map(json.loads, each.stdout.splitlines()))) for each in (apart, alone)]
    assert outcomes[0] == outcomes[1]
    assert [json.loads(line)["seed"] for line in alone.stdout.splitlines()] == [0, 1, 2]


def test_no_run_begins_when_the_time_is_over() -> None:
    result = simulate("--fuzz", "--minutes", "0", "--json")
    assert (result.exit_code, result.stdout) == (0, "")


def test_what_to_simulate_has_to_be_said() -> None:
    result = simulate("--seeds", "3")
    assert result.exit_code == 2
    assert "(a TRACE, --trace-from-journal FOLDER, or --fuzz)" in result.output
