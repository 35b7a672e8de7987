"""A service of the server's own: it goes when the server does, and is nobody else's."""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack

import openai
import psutil
import pytest
from typer.testing import CliRunner

from engine.server.command import app
from engine.server.flags import FlagRefused
from engine.server.folder import SOCKET_NAME, find_listener, make_service_folder
from engine.server.own_service import ServiceFailed, ServiceRefused, own_service
from kvstore.client import Client
from tests.engine.server.conftest import running

SIZES = ["--gpu", "4MiB", "--cpu", "4MiB", "--disk-bytes", "64MiB"]
KEEPER = (
    "import sys, time\n"
    "from pathlib import Path\n"
    "from engine.server.own_service import own_service\n"
    f"with own_service(Path(sys.argv[1]), {SIZES!r}):\n"
    "    print('ready', flush=True)\n"
    "    time.sleep(600)\n"
)


def test_it_ends_with_a_server_that_is_killed_and_the_next_has_its_own(tmp_path):
    keeper = subprocess.Popen([sys.executable, "-c", KEEPER, tmp_path], stdout=subprocess.PIPE, text=True)
    with keeper:
        assert keeper.stdout is not None
        assert keeper.stdout.readline() == "ready\n"
        service = psutil.Process(find_listener(tmp_path / SOCKET_NAME))
        assert service.ppid() == keeper.pid
        keeper.kill()
    _, alive = psutil.wait_procs([service], timeout=30)
    for process in alive:
        process.kill()
    assert not alive
    folder = make_service_folder("--folder", str(tmp_path))
    with own_service(folder, SIZES) as own, Client(own.address) as client:
        assert psutil.Process(find_listener(tmp_path / SOCKET_NAME)).ppid() == os.getpid()
        assert client.operator.usage().tiers[0].frames_used == 0


def test_a_folder_that_a_service_runs_in_is_refused_and_that_service_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr("engine.server.folder.LEAVE_SECONDS", 0.1)
    with own_service(tmp_path, SIZES) as own, Client(own.address) as client:
        process = find_listener(tmp_path / SOCKET_NAME)
        why = f"--folder {tmp_path}: a service runs in it already, as process {process}; remedy: another"
        with pytest.raises(FlagRefused, match=why):
            make_service_folder("--folder", str(tmp_path))
        flags = ["serve", "--port", "0", "--model", "tiny", "--own-service", "--folder", str(tmp_path)]
        result = CliRunner().invoke(app, flags)
        assert (result.exit_code, result.stderr) == (
            2,
            f"kvstore-engine: {why} folder, or stop that service and its server\n",
        )
        # Two that start at once have both looked before.
        why = r"has not started:\n.*(listens there already|in use)"
        with pytest.raises(ServiceRefused, match=why), own_service(tmp_path, SIZES):
            pass
        assert find_listener(tmp_path / SOCKET_NAME) == process
        client.operator.usage()


def test_one_that_does_not_come_up_again_is_given_up_and_its_last_words_are_told(
    loaded, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr("engine.server.own_service.KEEP_SECONDS", 0.05)
    monkeypatch.setattr("engine.server.own_service.FAILED_STARTS_MAX", 2)
    with ExitStack() as stack:
        own = stack.enter_context(own_service(tmp_path, SIZES))
        server = stack.enter_context(running(loaded, own))
        own.on_failure(server.server.give_up)
        with server.client() as client:
            asked = {"model": "tiny", "prompt": "a", "max_tokens": 1500, "seed": 1}
            stream = iter(client.completions.create(**asked, stream=True))
            next(stream)
            own._command += ["--gpu", "0"]
            os.kill(find_listener(tmp_path / SOCKET_NAME), signal.SIGKILL)
            with pytest.raises(openai.APIError, match="The server is stopping, or its engine has failed"):
                list(stream)
        why = r"(?s)status 2, after 2 starts in vain:.*--gpu = 0: no memory"
        with pytest.raises(ServiceFailed, match=why):
            stack.close()
    killed, refused = (each.getMessage() for each in caplog.records if "own_service" in each.name)
    assert killed == "the kvstore service has ended with status -9 and is started again"
    assert "status 2 and is started again:\n" in refused
    assert "--gpu = 0: no memory" in refused
