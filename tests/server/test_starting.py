"""Starts and stops of the program: sockets, a second service, bad flags, status."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from kvstore.client.errors import Unanswered
from kvstore.client.statuses import from_rpc
from kvstore.v1 import kvstore_pb2 as pb
from tests.server.harness import DEADLINE_SECONDS, Engine, Service
from tests.server.refusals import MakeService


def test_sockets_are_private_and_go_with_a_clean_stop(service: Service) -> None:
    modes = {path.name: path.stat().st_mode for path in service.folder.iterdir() if path.name != "log"}
    assert sorted(modes) == ["k.sock", "k.sock.fds"]
    assert all(stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600 for mode in modes.values())
    with service.stub() as stub, Engine(stub) as engine:
        call = stub.KeepAlive.future(engine.keep_alive_request(wait=30), timeout=60)
        assert service.end() == 0
        # Answered, or, where it came too late to be taken in, told so: the client tries such a call again.
        error = call.exception(timeout=5)
        if error is not None:
            assert isinstance(error, grpc.RpcError)
            assert isinstance(from_rpc(error, ""), Unanswered)
        assert engine.tether.recv(1) == b""
    assert [path.name for path in service.folder.iterdir()] == ["log"]


def test_ctrl_c_is_a_clean_stop_too(service: Service) -> None:
    assert service.end(signal.SIGINT) == 0


def test_a_killed_service_leaves_dead_sockets_that_its_successor_removes(service: Service) -> None:
    for _ in range(3):
        service.end(signal.SIGKILL)
        assert (service.folder / "k.sock").exists()
        service.start()
        with service.stub() as stub:
            stub.GetUsage(pb.GetUsageRequest())
    assert service.end() == 0
    assert [path.name for path in service.folder.iterdir()] == ["log"]


def run(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "kvstore", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS)


def serve(folder: Path, name: str, *flags: str) -> str:
    """The one line that a start which must fail says."""
    sizes = ("--gpu", "1MiB", "--cpu", "1MiB")
    done = run("serve", "--socket", str(folder / name), *sizes, *flags)
    assert done.returncode == 2, done.stderr
    [line] = done.stderr.splitlines()
    return line


def test_a_second_service_is_refused(make_service: MakeService, folder: Path) -> None:
    disk = ("--disk", str(folder / "disk"), "--disk-bytes", "16MiB")
    service = make_service(*disk).start()
    assert "already" in serve(folder, "k.sock")
    assert "in use" in serve(folder, "other.sock", *disk)
    assert sorted(os.listdir(folder)) == ["disk", "k.sock", "k.sock.fds", "log"]
    with service.stub() as stub:
        stub.GetUsage(pb.GetUsageRequest())


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--gpu", "5 bananas"), ["--gpu", "bananas", "GiB"]),
        (("--gpu", "500TiB"), ["--gpu", "500 TiB"]),
        (("--lease", "nan"), ["--lease", "nan"]),
        (("--socket", "/"), ["--socket", "names no file"]),
        (("--socket", "/tmp/a%41.sock"), ["--socket", "a%41.sock"]),
        (("--socket", "unix://rel/x"), ["--socket", "unix://rel/x"]),
        (("--socket", os.fsdecode(b"/tmp/\xff.sock")), ["--socket", "UTF-8"]),
        (("--tenant", os.fsdecode(b"\xff")), ["--tenant"]),
        (("--socket", "localhost:1234"), ["--socket", "localhost:1234", "unix:"]),
        (("--disk", "/dev/null/x", "--disk-bytes", "1GiB"), ["/dev/null/x"]),
    ],
)
def test_bad_flags_end_in_one_line(folder: Path, flags: tuple[str, ...], words: list[str]) -> None:
    line = serve(folder, "k.sock", *flags)
    assert all(word in line for word in words), line
    assert os.listdir(folder) == []


def test_status_shows_tiers_and_engines(service: Service) -> None:
    with service.stub() as stub, Engine(stub, build="[bold]tiny") as engine:
        done = run("status", "--socket", str(service.socket))
        assert done.returncode == 0
        words = ("GPU", "CPU", "attached", "[bold]tiny", str(os.getpid()))
        assert [word for word in words if word not in done.stdout] == [], done.stdout
        done = run("status", "--socket", f"unix:{service.socket}", "--json")
        assert f'"name": "{engine.name}"' in done.stdout


def test_status_without_a_service_is_one_line(folder: Path) -> None:
    done = run("status", "--socket", str(folder / "none.sock"))
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "none.sock" in done.stderr
