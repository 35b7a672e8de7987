"""`kvstore demo` as a person runs it, with the tiny model: the same plan, processes and checks in seconds."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

COMMAND = [sys.executable, "-m", "kvstore", "demo", "--json", "--model", "tiny"]
TURN_TYPES = {
    "session": str,
    "turn": int,
    "prompt_tokens": int,
    "from_gpu": int,
    "from_cpu": int,
    "from_disk": int,
    "computed": int,
    "ttft_ms": float,
    "ttft_plain_ms": float,
    "equal": bool,
    "near_tie": bool,
}
WAIT_SECONDS = 60.0


@contextmanager
def start(folder: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """The demo, with `folder` to put its own temporary folder in."""
    process = subprocess.Popen(
        [*COMMAND, *flags],
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def find_child(process: subprocess.Popen[str], word: str) -> psutil.Process:
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        for child in psutil.Process(process.pid).children():
            # Libraries start helpers that are gone in the same moment.
            with suppress(psutil.NoSuchProcess):
                if word in child.cmdline():
                    return child
        time.sleep(0.02)
    pytest.fail(f"no child with {word!r} was started")


def explain(journal: Path, *flags: str) -> list[str]:
    command = [sys.executable, "-m", "kvstore", "explain", "--journal", str(journal), "--limit", "0", *flags]
    told = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)
    assert (told.returncode, told.stderr) == (0, "")
    return told.stdout.splitlines()


def check_explained(decision: dict[str, Any]) -> None:
    """It has both sides of the sum, or its reason; and what it rested on."""
    inputs, costs = decision["inputs"], (decision["chosen_cost_seconds"], decision["other_cost_seconds"])
    kind = decision["kind"]
    if kind in ("swap", "restore"):
        assert decision["session"]
        weighed = all(cost > 0 for cost in costs) and decision["other"]
        assert weighed or decision["reason"], decision
        assert inputs["tokens"] > 0
        assert inputs["block_tokens"] == 16
        if weighed:
            assert inputs["compute_seconds"] >= 0
            assert inputs["gpu_price"] >= 1
            assert inputs["block_bytes"] > 0
        if kind == "restore":
            assert inputs["blocks_loaded"] > 0 or inputs["compute_tokens"] > 0
            assert "other_blocks_loaded" in inputs or not decision["other"]
    else:
        assert decision["reason"]
        assert decision["lots"] >= 1
        assert decision["blocks_of"]
    if kind == "evict":
        assert inputs["blocks"] > 0
        assert inputs["worth_most_reads_per_second"] >= inputs["worth_least_reads_per_second"] >= 0
        # Room for a copy is for no one sequence that would be named.
        assert bool(decision["room_for"]) is ("a copy here" not in decision["reason"]), decision
    if kind == "admit":
        assert inputs["blocks_taken"] + inputs["blocks_shed"] > 0


@pytest.mark.slow
def test_the_demo_is_served_from_all_tiers_and_answers_as_without_them(tmp_path):
    journal = tmp_path / "journal"
    with start(tmp_path, "--journal", str(journal)) as process:
        output, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    result = json.loads(output.splitlines()[-1])
    assert set(result) == {
        "turns", "blocks_verified", "blocks_wrong", "engine_kills", "service_restarts", "ok",
    }  # fmt: skip
    assert result["ok"] is True
    assert result["blocks_verified"] > 0
    assert (result["blocks_wrong"], result["engine_kills"], result["service_restarts"]) == (0, 1, 1)
    assert len(result["turns"]) == 12
    for turn in result["turns"]:
        assert {name: type(value) for name, value in turn.items()} == TURN_TYPES
        assert turn["equal"]
        sources = ("from_gpu", "from_cpu", "from_disk", "computed")
        assert sum(turn[name] for name in sources) == turn["prompt_tokens"]
    for tier in ("from_gpu", "from_cpu", "from_disk"):
        assert sum(turn[tier] for turn in result["turns"]) > 0
    assert list(tmp_path.iterdir()) == [journal]
    # Nothing is silent for long: each turn is told when it is done, and in the plain run too.
    begin, _, plain = errors.partition("the same turns without kvstore\n")
    assert begin.index("reading torch") < begin.index("start of the service") < begin.index("three conver")
    for turn in result["turns"]:
        done = f"  {turn['session']} {turn['turn']}: {turn['prompt_tokens']} = "
        assert done in begin
        assert f"{done}{turn['prompt_tokens']} computed; first token " in plain
    # Why all of that was so can be asked when it is over, of both runs of the service.
    decisions = [json.loads(line) for line in explain(journal, "--json")]
    for decision in decisions:
        check_explained(decision)
    assert {each["kind"] for each in decisions} == {"swap", "restore", "evict", "admit"}
    restored = [each["session"] for each in decisions if each["kind"] == "restore"]
    for turn in result["turns"]:
        session = turn["session"]
        assert f"--journal {journal} --session {session}" in errors
        if turn["from_disk"] or turn["from_cpu"]:
            assert session in restored
    told = explain(journal, "--session", restored[0])
    assert not [line for line in told if "Also:" in line]
    assert sum(f"(session {restored[0]}, engine " in line for line in told) >= restored.count(restored[0])


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_demo_that_is_stopped_leaves_nothing_behind(tmp_path, stop):
    with start(tmp_path) as process:
        find_child(process, "engine.worker")
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(stop)
        process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode != 0
    # Helpers of its children end by themselves when these have.
    assert psutil.wait_procs(children, timeout=WAIT_SECONDS)[1] == []
    assert list(tmp_path.iterdir()) == []


def test_the_death_of_a_child_is_told_with_its_log(tmp_path):
    with start(tmp_path) as process:
        find_child(process, "engine.worker")
        find_child(process, "serve").kill()
        _, errors = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 1
    assert "service-1: it has ended by itself, with status -9" in errors
    assert "kvstore ready on" in errors
    assert list(tmp_path.iterdir()) == []
