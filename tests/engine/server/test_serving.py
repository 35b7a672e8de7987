"""The program as a person runs it, from its flags to its end."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest
from typer.testing import CliRunner

from engine.engine import Engine
from engine.program import main as program_main
from engine.server.command import app
from engine.server.serving import CannotListen, Options, Server
from kvstore.client import ServiceLost
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
    assert len(errors.splitlines()) == 1
    assert "kvstore service has ended with status -9 and is started again" in errors
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


def test_without_a_service_it_does_not_start(loaded, tmp_path):
    options = Options(model="tiny", kvstore=f"unix:{tmp_path}/nobody.sock", port=0, attach_seconds=0.1)
    with pytest.raises(ServiceLost):
        Server(options, loaded).start()


def refused(*flags: str) -> str:
    result = CliRunner().invoke(app, ["serve", *flags])
    assert result.exit_code == 2
    return result.stderr


def test_flags_that_can_not_be_are_named(tmp_path):
    assert "--model huge: there is no such model" in refused("--model", "huge")
    assert "--host 192.0.2.1: whoever reaches it" in refused("--host", "192.0.2.1")
    assert "--host example.org: it is no IP address" in refused("--host", "example.org")
    assert "--kvstore unix:x: with --own-service" in refused("--own-service", "--kvstore", "unix:x")
    assert "body_bytes must be above 0" in refused("--body-bytes", "0")
    assert "choices (9) must not be more" in refused("--choices", "9", "--answers-at-once", "8")


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        ("secret-0123456789", 0o644, "others may read it"),
        ("short", 0o600, "at least 16"),
        ("two words 0123456789", 0o600, "one line"),
        ("schlüssel-0123456789", 0o600, "can't be read"),
    ],
)
def test_a_key_that_is_none_is_refused_and_not_shown(tmp_path, text, mode, why):
    path = tmp_path / "key"
    path.write_text(text)
    path.chmod(mode)
    told = refused("--api-key-file", str(path))
    assert why in told
    assert text not in told
    assert "can't be read" in refused("--api-key-file", str(tmp_path / "none"))


def test_a_port_that_is_taken_is_told(server, loaded, service):
    port = int(server.url.rpartition(":")[2])
    with pytest.raises(CannotListen, match=f"--port {port}: Address already in use; remedy"):
        Server(Options(model="tiny", kvstore=service.address, port=port), loaded).start()


def test_what_is_not_installed_is_told_by_name(monkeypatch, capsys):
    monkeypatch.setitem(
        sys.modules, "engine.server.command", None
    )  # As if it, or what it needs, were not there.
    with pytest.raises(SystemExit) as caught:
        program_main()
    assert caught.value.code == 2
    assert (
        "engine.server.command is not installed; remedy: in the clone, make install"
        in capsys.readouterr().err
    )
