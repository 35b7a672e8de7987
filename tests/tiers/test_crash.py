"""Processes killed with SIGKILL in the middle of writes, evictions, index commits and restarts.

Each folder sees several deaths in a row. Every process first checks the whole account of those before it, and
starts without help. `make crash` has 200 deaths; here is a sample of them.
"""

import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.tiers import crash_worker

DEATHS_A_FOLDER = 3
STEPS = 300
SECONDS_MAX = 60


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        folders = -(-metafunc.config.getoption("--crash-points") // DEATHS_A_FOLDER)
        metafunc.parametrize("seed", range(folders))


def live(folder: Path, seed: int, steps: int, kill_at: int) -> subprocess.Popen[str]:
    words = [folder / "disk", folder / "notes", seed, steps, kill_at]
    command = [sys.executable, "-m", crash_worker.__name__, *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def outcome(process: subprocess.Popen[str]) -> tuple[int, str]:
    with process:
        output, _ = process.communicate(timeout=SECONDS_MAX)
        return process.returncode, output


def test_every_restart_finds_what_was_promised(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    killed = 0
    for death in range(DEATHS_A_FOLDER):
        # Half of them early: while the folder is opened, or soon after.
        kill_at = chance.randint(1, 12) if chance.random() < 0.4 else chance.randint(10, 400)
        status, output = outcome(live(tmp_path, 1000 * seed + death, STEPS, kill_at))
        assert status in (0, -signal.SIGKILL), output
        killed += status != 0
    status, output = outcome(live(tmp_path, seed, 20, 0))
    assert status == 0, output
    assert killed >= 1, "hardly any was killed: the numbers of calls don't fit any more"


def test_killed_at_any_time_from_outside(tmp_path: Path) -> None:
    """Where no call stands at the door: the moment comes from the clock, so it is another one each time."""
    for death in range(2):
        with live(tmp_path, death, 100_000, 0) as process:
            notes = tmp_path / "notes"
            seen = notes.stat().st_size if notes.exists() else 0
            while process.poll() is None and (not notes.exists() or notes.stat().st_size < seen + 2_000):
                threading.Event().wait(0.01)
            threading.Event().wait(random.random() * 0.2)
            process.kill()
            status, output = outcome(process)
        assert status == -signal.SIGKILL, output
    status, output = outcome(live(tmp_path, 99, 20, 0))
    assert status == 0, output
