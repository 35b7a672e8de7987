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
def start(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The demo, with `folder` to put its own temporary folder in."""
    process = subprocess.Popen(
        COMMAND,
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
            # One that has just ended has no command line: imports run short helpers.
            with suppress(psutil.Error):
                if word in child.cmdline():
                    return child
        time.sleep(0.02)
    pytest.fail(f"no child with {word!r} was started")


@pytest.mark.slow
def test_the_demo_is_served_from_all_tiers_and_answers_as_without_them(tmp_path):
    with start(tmp_path) as process:
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
    assert list(tmp_path.iterdir()) == []


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
