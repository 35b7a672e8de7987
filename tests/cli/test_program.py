"""The program around its commands: help, what it loads, and what is said where no service answers."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvstore.cli.main import COMMANDS, app
from kvstore.cli.options import DEFAULT_SOCKET
from kvstore.cli.progress import ProgressLines
from kvstore.cli.texts import counted, rate_words

HEAVY = ("grpc", "numpy", "torch", "lmdb")
ASKING = ("drain", "forget", "health", "limits", "status", "watch")


@pytest.fixture
def silent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A socket on which somebody listens who never says a word."""
    path = tmp_path_factory.mktemp("kv") / "k.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        yield path


def loaded(*words: str) -> set[str]:
    """Which heavy packages a command has loaded when it ends."""
    code = (
        "import sys\n"
        "from kvstore.cli.main import main\n"
        f"sys.argv = ['kvstore', *{words!r}]\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"print('loaded', *(name for name in {HEAVY!r} if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    last = done.stdout.splitlines()[-1]
    assert last.startswith("loaded"), done.stderr
    return set(last.split()[1:])


@pytest.mark.parametrize("words", [("--help",), ("--version",), ("serve", "-h"), ("demo", "-h")])
def test_help_loads_nothing_heavy(words: tuple[str, ...]) -> None:
    assert loaded(*words) == set()


def test_to_ask_a_service_needs_grpc_alone(tmp_path: Path) -> None:
    for command in ("status", "health", "limits", "drain"):
        assert loaded(command, "--socket", str(tmp_path / "none.sock")) == {"grpc"}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_every_command_has_help(command: str, flag: str) -> None:
    done = CliRunner().invoke(app, [command, flag])
    assert (done.exit_code, "Usage: " in done.output) == (0, True)
    # Its line in the help of the program is the first of its own.
    function = getattr(import_module(f"kvstore.cli.{command}"), command)
    assert function.__doc__.splitlines()[0] == COMMANDS[command]


@pytest.mark.parametrize("command", ["serve", "explain", *ASKING])
def test_help_shows_the_socket_that_is_meant(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERMINAL_WIDTH", "200")
    told = CliRunner().invoke(app, [command, "-h"]).output
    assert f"[default: {DEFAULT_SOCKET}]" in told
    assert "dynamic" not in told


def test_no_default_is_shown_that_is_refused() -> None:
    told = CliRunner().invoke(app, ["serve", "-h"]).output
    for flag in ("--disk-bytes", "--journal-bytes"):
        [about] = told.split(flag + " ")[1:]
        assert "default" not in about.split("--")[0]


def test_a_service_that_is_late_is_not_one_that_is_not_there(silent: Path) -> None:
    late = run("health", "--socket", str(silent), "--timeout", "0.2")
    none = run("health", "--socket", str(silent) + ".none", "--timeout", "5")
    assert (late.returncode, none.returncode) == (2, 2)
    assert "did not answer in time" in late.stderr
    assert "no service answers" not in late.stderr
    assert "start one: kvstore serve" in none.stderr
    assert "in time" not in none.stderr


def test_what_is_no_socket_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(tmp_path / "left"))
    for name, why in (
        ("left", "nobody listens there any more (start one: kvstore serve): UNAVAILABLE"),
        ("file", "it is no socket"),
        ("none", "there is no such socket"),
        ("file/k.sock", "Not a directory"),
        (".", "it is no socket"),
    ):
        done = run("status", "--socket", str(tmp_path / name))
        [line] = done.stderr.splitlines()
        assert (done.returncode, why in line) == (2, True), line


@pytest.mark.parametrize("command", ASKING)
def test_nobody_there_is_one_line_and_status_2(command: str, tmp_path: Path) -> None:
    flags = ("--yes", "--session", "a") if command == "forget" else ()
    done = run(command, "--socket", str(tmp_path / "none.sock"), *flags)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert "no service answers" in line
    assert done.stdout == ""


def run(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "kvstore", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ)


def test_numbers_for_people() -> None:
    assert [counted(count, "block") for count in (0, 1, 2_000)] == ["0 blocks", "1 block", "2,000 blocks"]
    assert [counted(count, "swap out") for count in (1, 2)] == ["1 swap out", "2 swaps out"]
    told = [rate_words(rate) for rate in (7, 999, 200e6, 3.12e9, 999.9e6, 2e12)]
    assert told == ["7 B/s", "999 B/s", "200 MB/s", "3.12 GB/s", "1 GB/s", "2 TB/s"]


def test_progress_without_a_terminal_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    for seconds, told in ((0.0, "one\ntwo\n"), (3_600.0, "")):
        lines = ProgressLines(seconds)
        lines.say("one")
        lines.say("two")
        assert capsys.readouterr() == ("", told)
