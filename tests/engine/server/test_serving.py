"""The program as a person runs it, from its flags to its end."""

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest
from typer.testing import CliRunner

from engine.engine import Engine
from engine.gpu_device import GpuDevice
from engine.kv.set_ups import CONTIGUOUS, PAGED
from engine.program import main as program_main
from engine.server.command import app
from engine.server.flags import FlagRefused
from engine.server.listening import CannotListen
from engine.server.options import Options
from engine.server.own_service import ServiceRefused, own_service
from engine.server.serving import Server
from kvstore.client import ServiceLost
from tests.cuda.fake import fake_uuid
from tests.engine.late_stream import LateStream
from tests.engine.server.conftest import Running

pytestmark = pytest.mark.usefixtures("service")

COMMAND = [sys.executable, "-m", "engine.server.command", "serve", "--own-service", "--model", "tiny"]
SIZES = ["--gpu", "4MiB", "--cpu", "4MiB", "--disk-bytes", "64MiB", "--port", "0"]
HELLO = [{"role": "user", "content": "hello"}]


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@contextmanager
def program(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """With `folder` to put its temporary folder in; and its URL."""
    process = subprocess.Popen(
        [*COMMAND, *SIZES],
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            line = said(process)
            assert line, process.communicate(timeout=60)[1]
            yield process, line.split()[3]
        finally:
            process.kill()


def test_it_keeps_a_service_of_its_own_and_lets_answers_end_when_it_is_stopped(tmp_path):
    with program(tmp_path) as (process, url):
        assert "curl" in said(process)
        children = psutil.Process(process.pid).children(recursive=True)
        assert any("kvstore" in child.cmdline() for child in children)
        client: Any = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
        with client:
            asked = {"model": "tiny", "messages": HELLO, "max_tokens": 300, "seed": 1}
            whole = client.chat.completions.create(**asked)
            # A service that dies is started again, and the server goes on with it.
            [service] = [child for child in children if "kvstore" in child.cmdline()]
            service.kill()
            again = client.chat.completions.create(**asked)
            assert again.choices[0].message.content == whole.choices[0].message.content
            children = psutil.Process(process.pid).children(recursive=True)
            with client.chat.completions.create(**asked, stream=True) as stream:
                first = next(iter(stream))
                process.send_signal(signal.SIGTERM)
                rest = [choice for chunk in stream for choice in chunk.choices]
            told = "".join(each.delta.content or "" for each in [first.choices[0], *rest])
            assert told == whole.choices[0].message.content
            assert rest[-1].finish_reason in ("length", "stop")
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (0, "")
    loading, again = errors.splitlines()
    assert "loading the model tiny as fp32 on cpu" in loading
    assert "kvstore service has ended with status -9 and is started again" in again
    psutil.wait_procs(children, timeout=30)
    assert not any(child.is_running() for child in children)
    assert list(tmp_path.iterdir()) == []


def test_an_engine_that_fails_is_told_to_all_who_wait_and_ends_the_server(
    loaded, service, monkeypatch, caplog
):
    server = Running(loaded, service, Options(model="x").limits)

    def fail(engine: Engine) -> None:
        raise ZeroDivisionError("a bug")

    with server.client() as client:
        stream = iter(
            client.completions.create(model="tiny", prompt="a", max_tokens=500, stream=True, seed=1)
        )
        next(stream)
        monkeypatch.setattr(Engine, "step", fail)
        with pytest.raises(openai.APIError, match="its engine has failed"):
            list(stream)
        with pytest.raises(openai.APIError):
            client.completions.create(model="tiny", prompt="a")
    assert not server.end()
    assert "the engine has failed" in caplog.text


@pytest.mark.parametrize("set_up", [CONTIGUOUS, PAGED], ids=lambda each: each.name)
def test_memory_of_its_own_is_where_the_device_is(client, loaded, monkeypatch, set_up):
    asked = {"model": "tiny", "messages": HELLO, "max_tokens": 20, "seed": 1}
    whole = client.chat.completions.create(**asked)
    stream = LateStream(3)
    device = GpuDevice(stream, "cuda:0", fake_uuid(0))
    monkeypatch.setattr("engine.server.serving.open_device", lambda name: device)
    options = Options(model="tiny", port=0, set_up=set_up, kv_bytes=4 << 20, reserve_tokens=512)
    server = Server(options, loaded)
    url = f"{server.start()}/v1"
    thread = threading.Thread(target=server.serve, name="server")
    thread.start()
    try:
        other: Any = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
        with other:
            answer = other.chat.completions.create(**asked)
        assert answer.choices[0].message.content == whole.choices[0].message.content
        assert stream.run_count > 0
    finally:
        server.stop()
        thread.join()


def test_without_a_service_it_does_not_start(loaded, tmp_path):
    options = Options(model="tiny", kvstore=f"unix:{tmp_path}/nobody.sock", port=0, attach_seconds=0.1)
    with pytest.raises(ServiceLost):
        Server(options, loaded).start()


def refused(*flags: str) -> str:
    """By what is known of the model or the GPU alone: no service was started for it."""
    result = CliRunner().invoke(app, ["serve", "--port", "0", *flags])
    assert result.exit_code == 2
    return result.stderr


def test_memory_without_room_for_a_frame_of_the_model_is_refused_before_a_service_is_started(monkeypatch):
    monkeypatch.setattr("engine.server.running.own_service", None)
    own = ("--own-service", "--model", "tiny")
    why = "no room for a single frame of 8192 bytes; remedy: as much or more, or fewer --block-tokens"
    assert f"--gpu 8191: {why}" in refused(*own, "--gpu", "8191")
    assert f"--kv-memory 4KiB: {why}" in refused(*own, "--kv-memory", "4KiB")
    paged = ("--model", "tiny", "--kv", "paged", "--block-tokens", "64", "--kv-memory", "16KiB")
    assert "--kv-memory 16KiB: no room for a single frame of 32768 bytes" in refused(*paged)
    contiguous = ("--model", "tiny", "--kv", "contiguous", "--kv-memory", "16KiB", "--reserve-tokens", "48")
    assert "frame of 24576 bytes; remedy: as much or more, or fewer --reserve-tokens" in refused(*contiguous)


def test_what_is_wrong_with_a_models_files_is_told_by_the_flag(tmp_path, monkeypatch):
    monkeypatch.setattr("engine.server.running.own_service", None)
    (tmp_path / "x.gguf").write_text("nothing")
    file, folder = str(tmp_path / "x.gguf"), str(tmp_path)
    assert f"kvstore-engine: --model {file}: 7 bytes: it is no GGUF file" in refused("--model", file)
    assert f"kvstore-engine: --model {folder}: config.json: there is no" in refused("--model", folder)

    def open_model(name: str) -> None:
        raise PermissionError(errno.EACCES, "x", name)

    monkeypatch.setattr("engine.server.running.open_model", open_model)
    assert f"--model {file}: Permission denied; remedy: " in refused("--own-service", "--model", file)


def test_a_gpu_with_less_memory_than_is_asked_for(monkeypatch):
    monkeypatch.setattr("engine.server.running.gpu_uuid", lambda device: "GPU-1")
    monkeypatch.setattr("engine.server.running.gpu_bytes", lambda device: 80 << 30)
    told = refused("--device", "cuda", "--kv", "paged", "--kv-memory", "81GiB")
    assert f"--kv-memory 81GiB: cuda has {80 << 30} bytes; remedy: ask for less" in told


def test_what_the_service_itself_refuses_is_a_wrong_flag_too(tmp_path):
    flags = ["--gpu", "0", "--cpu", "1GiB", "--disk-bytes", "1GiB"]
    with (
        pytest.raises(ServiceRefused, match=r"(?s)has not started:.*--gpu = 0: no memory"),
        own_service(tmp_path, flags),
    ):
        pass


def test_a_folder_whose_log_can_not_be_written(tmp_path):
    (tmp_path / "service.log").mkdir()
    why = f"--folder {tmp_path}: service.log in it can't be written: Is a directory; remedy: another"
    with pytest.raises(FlagRefused, match=why), own_service(tmp_path, []):
        pass


def test_a_service_that_is_not_there_is_waited_for_and_that_is_told(loaded, tmp_path, caplog):
    options = Options(model="tiny", kvstore=f"unix:{tmp_path}/nobody.sock", port=0, attach_seconds=0.3)
    with pytest.raises(ServiceLost):
        Server(options, loaded).start()
    [told] = [each.getMessage() for each in caplog.records if "waiting for the service" in each.getMessage()]
    assert "up to 0.3 seconds: no service answers on" in told


def test_a_port_that_is_taken_is_told(server, loaded, service):
    port = int(server.url.rpartition(":")[2])
    with pytest.raises(CannotListen, match=f"--port {port}: Address already in use; remedy"):
        Server(Options(model="tiny", kvstore=service.address, port=port), loaded).start()


def test_what_is_not_installed_is_told_by_name(monkeypatch, capsys):
    # As if it, or what it needs, were not there.
    for name in ("engine.server.running", "engine.server.command"):
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.setattr(sys, "argv", ["kvstore-engine", "serve", "--port", "0"])
        with pytest.raises(SystemExit) as caught:
            program_main()
        assert caught.value.code == 2
        assert f"{name} is not installed; remedy: in the clone, make install" in capsys.readouterr().err
