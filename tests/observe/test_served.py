"""The journal of a real service: its effects come out of a fresh store again, also after SIGKILL."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore.observe.reading import find_runs
from kvstore.v1 import kvstore_pb2 as pb
from tests.observe.helpers import replay
from tests.server.harness import (
    DEADLINE_SECONDS,
    Engine,
    Service,
    allocate,
    fill,
    free,
    key,
    tier,
    until,
)

KEYS = range(1, 13)


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kv")


@pytest.fixture
def service(folder: Path) -> Iterator[Service]:
    disk = ("--disk", str(folder / "disk"), "--disk-bytes", "64MiB")
    service = Service(folder, *disk, "--journal", str(folder / "journal"), "--journal-bytes", "16MiB")
    yield service.start()
    service.end()


def work(service: Service) -> None:
    """A session's turn that goes to disk, more turns than the GPU has room for, and refusals."""
    with service.stub() as stub, Engine(stub) as engine:
        fill(engine, 1, KEYS, session="chat")
        engine.step(free(1, pb.FreeRequest.SESSION))
        engine.step()

        def written() -> int:
            usage = stub.GetUsage(pb.GetUsageRequest(), timeout=DEADLINE_SECONDS)
            return tier(usage, pb.TIER_DISK).blocks_moved_in

        until(written, lambda blocks: blocks >= len(KEYS))
        for number in range(2, 5):
            fill(engine, number, range(100 * number, 100 * number + 8))
            engine.step(free(number))
        engine.step()
        engine.step(allocate(9, len(KEYS) * 4 + 1, KEYS, session="chat"))
        engine.keep_alive()


def run_program(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "kvstore", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS)


def test_a_served_session_replays_after_a_clean_end(service: Service, folder: Path) -> None:
    work(service)
    assert service.end() == 0
    done = run_program("replay", str(folder / "journal"), "--check")
    assert (done.returncode, "the same effects as then" in done.stdout) == (0, True), (
        done.stdout + done.stderr
    )
    [run] = find_runs(folder / "journal")
    kinds = {type(entry.event).__name__ for entry in run.entries()}
    assert kinds >= {
        "BlocksFound",
        "Attach",
        "TetherOpened",
        "Step",
        "Tick",
        "TransferEnded",
        "TethersClosed",
    }
    assert "left out" not in done.stdout
    told = run_program("replay", str(folder / "journal"), "--story", f"block={key(1).hex()}").stdout
    for words in ("Commit", "published", "GPU to CPU ended well", "CPU to DISK ended well"):
        assert words in told


def test_each_service_is_a_run_of_its_own_and_what_lay_on_disk_is_in_it(
    service: Service, folder: Path
) -> None:
    work(service)
    until(lambda: replay(folder / "journal").output, lambda told: "the same effects" in told)
    service.end(signal.SIGKILL)
    service.start()
    with service.stub() as stub, Engine(stub) as engine:
        [result] = engine.step(allocate(1, len(KEYS) * 4 + 1, KEYS)).results
        assert result.allocate.cached_tokens == len(KEYS) * 4
    service.end()
    done = replay(folder / "journal")
    assert (done.exit_code, done.output.count("the same effects as then")) == (0, 2), done.output
    first, second = find_runs(folder / "journal")
    assert first.heading.store_epoch != second.heading.store_epoch
    told = replay(folder / "journal", "--story", f"block={key(1).hex()}").output
    assert told.count("run ") == 2
    assert "found on disk" in told.split("run ")[2]


def test_a_service_whose_journal_can_not_be_made_does_not_start(folder: Path) -> None:
    (folder / "journal").mkdir()
    (folder / "journal" / "thesis.txt").write_text("mine")
    flags = ("--journal", str(folder / "journal"), "--journal-bytes", "16MiB", "--gpu", "1MiB", "--cpu", "0")
    done = run_program("serve", "--socket", str(folder / "k.sock"), *flags)
    assert done.returncode == 2
    assert "--journal = " in done.stderr
    assert "holds what is not kvstore's: thesis.txt" in done.stderr
