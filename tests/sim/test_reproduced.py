"""A seed says all: the same run again, event by event, in any process."""

import hashlib
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from kvstore.core.errors import ConfigInvalid
from kvstore.sim.attempts import Passed, attempt_seed
from kvstore.sim.config import draw_config
from kvstore.sim.schedule import Kind, draw_schedule
from kvstore.sim.simulation import START, Simulation

SEEDS = (3, 11)
TURNS = 120


def digest(seed: int) -> str:
    """Of all events, their effects, and what kernels and links have done."""
    config = draw_config(seed, restart_share=0.02, disk_frames=20, cpu_frames=12)
    simulation = Simulation(config, draw_schedule(config, TURNS, START))
    simulation.run()
    return hashlib.sha256(repr(simulation.world.log).encode()).hexdigest()


def digests_of_a_process(hash_seed: str) -> list[str]:
    code = f"from tests.sim.test_reproduced import digest; print(*map(digest, {SEEDS}))"
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def test_a_seed_does_the_same_in_two_processes_with_other_hashes() -> None:
    first, second = digests_of_a_process("1"), digests_of_a_process("2")
    assert first == second
    assert len(set(first)) == len(SEEDS)


def test_what_is_given_changes_nothing_else_of_what_is_drawn() -> None:
    drawn = draw_config(7)
    assert draw_config(7, gpu_frames=99) == replace(drawn, gpu_frames=99)


def test_a_disk_that_always_fails_is_waited_for_by_all_who_forget() -> None:
    """Between two tries nothing is under way, and that is no Forget which is lost."""
    given = {"fail_share": 1.0, "forget_share": 0.4, "disk_frames": 6, "cpu_frames": 4, "namespaces": 2}
    quiet = {"restart_share": 0, "drain_share": 0, "kill_share": 0}
    result = attempt_seed(0, 60, **given, **quiet)
    assert isinstance(result, Passed), result.message


def test_what_a_run_has_no_number_for_is_refused() -> None:
    with pytest.raises(ConfigInvalid, match="frames"):
        draw_config(7, frames=99)


def test_every_kind_of_thing_happens_to_somebody() -> None:
    kinds = {stimulus.kind for seed in range(40) for stimulus in draw_schedule(draw_config(seed), 200, START)}
    assert kinds == set(Kind)
