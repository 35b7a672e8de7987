"""The program's words and exit statuses, as a new user meets them."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.server.harness import DEADLINE_SECONDS, Engine, Service

COMMAND = [sys.executable, "-m", "kvstore"]


def run(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=DEADLINE_SECONDS)


def test_the_version_is_told() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, "kvstore 0.1.0\n")


def test_status_before_the_first_attach(make_service) -> None:
    service: Service = make_service(cpu_frames=0).start()
    told = run("status", "--socket", str(service.socket)).stdout
    assert "No engine has attached yet: the pools are made with the first one." in told
    assert "not yet made" in told
    assert " 0 B" not in told
    epoch = json.loads(run("status", "--socket", str(service.socket), "--json").stdout)["store_epoch"]
    assert len(epoch) == 16
    assert told.startswith(f"kvstore 0.1.0, epoch {epoch}, up ")


def test_the_epoch_of_engines_is_the_same(service: Service) -> None:
    with service.stub() as stub, Engine(stub):
        usage = json.loads(run("status", "--socket", str(service.socket), "--json").stdout)
    assert [each["engine"]["store_epoch"] for each in usage["engines"]] == [usage["store_epoch"]]


def test_a_disk_that_is_a_file_is_told_so(folder: Path) -> None:
    (folder / "file.txt").write_text("")
    disk = ("--disk", str(folder / "file.txt"), "--disk-bytes", "16MiB")
    done = run("serve", "--socket", str(folder / "k.sock"), "--gpu", "1MiB", "--cpu", "1MiB", *disk)
    assert done.returncode == 2
    assert f"--disk = {folder}/file.txt: a file, not a folder" in done.stderr


@pytest.mark.parametrize("flags", [("--model", "foo"), ("--model", "tiny", "--keep", "{folder}/full")])
def test_the_demo_refuses_with_the_status_of_refusals(folder: Path, flags: tuple[str, ...]) -> None:
    (folder / "full").mkdir()
    (folder / "full" / "thesis.txt").write_text("mine")
    done = run("demo", *(flag.format(folder=folder) for flag in flags))
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_before_it_is_ready_is_a_clean_one(folder: Path, number: signal.Signals) -> None:
    words = ("serve", "--socket", str(folder / "k.sock"), "--gpu", "1MiB", "--cpu", "1MiB")
    process = subprocess.Popen([*COMMAND, *words], stderr=subprocess.PIPE, text=True)
    # Sent as soon as it is caught at all, which is well before the server is loaded.
    caught = Path(f"/proc/{process.pid}/status")
    end = time.monotonic() + DEADLINE_SECONDS
    while not _catches(caught.read_text(), signal.SIGTERM):
        assert time.monotonic() < end
        time.sleep(0.002)
    process.send_signal(number)
    try:
        _, errors = process.communicate(timeout=DEADLINE_SECONDS)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert "before it was ready" in errors or "stopping" in errors
    assert "Traceback" not in errors
    assert list(folder.iterdir()) == []


def _catches(status: str, number: signal.Signals) -> bool:
    [mask] = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")]
    return bool(int(mask, 16) >> (number - 1) & 1)
