"""Every flag of `kvstore-engine serve` with what it can't be: status 2 and a line, before all is loaded."""

import os
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from engine.names import DTYPE_NAMES
from engine.server.command import app
from engine.server.limits import Limits

NOT_UTF_8 = "\udcff"
KEY = "secret-0123456789"
# By flag: what it can't be. Those that are no numbers at all, typer refuses.
COUNTS = ("0", "-1", str(2**31), "9" * 30)
SECONDS = ("0", "-1", "nan", "inf", "-inf", "86401", "1e300")
SIZES = ("", " ", "-1", "0", "1", "4095", "nan", "1e9", "5G", "much", "ä", NOT_UTF_8, "9000TiB", "9" * 400)
WRONG = {
    "--model": ("", " ", "/none", "ä", NOT_UTF_8, "x" * 300, "/dev/null", "a\nb"),
    "--dtype": ("", "FP32", "int8", NOT_UTF_8),
    "--device": ("", "gpu", "cuda:", "cuda:-1", "cuda:x", "cuda:٣", "CUDA", NOT_UTF_8),
    "--kv": ("", "flat", "FULL", NOT_UTF_8),
    "--block-tokens": ("0", "-16", "15", "128", "9" * 30),
    "--kvstore": ("", "tcp:localhost", "unix:", "a?b", NOT_UTF_8, "x" * 200),
    "--host": ("", " ", "example.org", "::", "192.0.2.1", "127.0.0.1:80", "٣", NOT_UTF_8),
    "--api-key-file": ("", " ", "/none", "/", "/dev/null", "/dev/zero", NOT_UTF_8, "x" * 300),
    "--attach-seconds": SECONDS[1:],
    "--request-seconds": SECONDS,
    "--stop-seconds": SECONDS,
    "--choices": (*COUNTS, "65"),
    "--connections": (*COUNTS, "65537"),
    **dict.fromkeys(
        (
            "--answers-at-once",
            "--answer-tokens",
            "--answer-tokens-default",
            "--body-bytes",
            "--messages",
            "--session-tokens",
        ),
        COUNTS,
    ),
}
OWN = {
    "--kv-memory": (*SIZES, "25%"),
    "--gpu": (*SIZES, "0%", "101%"),
    "--cpu": (*SIZES, "0%", "101%"),
    "--disk-bytes": (*SIZES[:-2], "9" * 400, "25%", "4194303"),
    "--folder": ("", " ", "/proc/zz", "/dev/null", "/dev/null/x", NOT_UTF_8, "a?b", "x" * 200),
    "--kvstore": ("", "unix:x"),
}
# A number that it can't be, as typer says it.
RANGES = {
    "--port": ("-1", "65536", "9" * 30),
    "--running-max": ("0", "-1", "1025"),
    "--threads": ("0", "-1", "1025"),
    "--reserve-tokens": ("0", "-1"),
}
NUMBERS = (
    *("--block-tokens", *RANGES, "--attach-seconds"),
    *(flag for flag in WRONG if flag.removeprefix("--").replace("-", "_") in Limits.__slots__),
)


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """What would be run, in place of all that needs torch."""
    runs: list[tuple[Any, Any]] = []

    def run(options: Any, asked: Any, bound: socket.socket) -> None:
        assert bound.getsockname()[0] == options.host
        runs.append((options, asked))

    monkeypatch.setitem(sys.modules, "engine.server.running", SimpleNamespace(run=run))
    monkeypatch.setattr("engine.server.command.signal.signal", lambda number, handler: None)
    return runs


def serve(*words: str) -> Result:
    return CliRunner().invoke(app, ["serve", "--port", "0", *words])


def assert_refused(flag: str, value: str, *others: str) -> None:
    result = serve(*others, flag, value)
    assert result.exit_code == 2, (flag, value)
    assert result.stdout == ""
    [line] = result.stderr.splitlines()
    shown = value if value.strip() and value.isprintable() else repr(value)
    if flag.endswith("-seconds"):
        shown = f"{float(value):.12g}"
    assert line.startswith(f"kvstore-engine: {flag} {shown}: "), line
    why, _, remedy = line.rpartition("; remedy: ")
    assert why
    assert remedy


@pytest.mark.parametrize("flag", WRONG)
def test_what_a_flag_can_not_be_is_told_by_name_value_and_remedy(flag, started):
    for value in WRONG[flag]:
        assert_refused(flag, value)
    assert not started


@pytest.mark.parametrize("flag", OWN)
def test_and_those_of_a_service_of_its_own(flag, started, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for value in OWN[flag]:
        assert_refused(flag, value, "--own-service")
    assert not started
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("flag", NUMBERS)
def test_numbers_that_are_none_or_out_of_range(flag, started):
    for value in ("", " ", "x", "1O", "0x10", NOT_UTF_8, *RANGES.get(flag, ())):
        result = serve(flag, value)
        assert result.exit_code == 2, (flag, value)
        assert flag in result.stderr
        assert "Invalid value" in result.stderr
    assert not started


def test_flags_that_do_not_go_together(started):
    for words in (
        ("--kv-memory", "1GiB"),
        ("--gpu", "1GiB"),
        ("--cpu", "1GiB"),
        ("--disk-bytes", "1GiB"),
        ("--folder", "x"),
        ("--reserve-tokens", "9"),
        ("--kvstore", "unix:x", "--kv", "paged"),
        ("--gpu", "1GiB", "--kv", "paged"),
        ("--kv", "shared"),
        ("--choices", "9", "--answers-at-once", "8"),
    ):
        assert_refused(words[0], words[1], *words[2:])
    assert not started
    assert not Path("x").exists()


def test_a_folder_that_is_a_file_or_too_deep_for_a_socket(tmp_path):
    (tmp_path / "file").write_text("")
    assert_refused("--folder", str(tmp_path / "file"), "--own-service")
    assert_refused("--folder", str(tmp_path / "file" / "x"), "--own-service")
    assert_refused("--folder", str(tmp_path / ("d" * 90)), "--own-service")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
def test_what_may_not_be_read_or_written(tmp_path):
    (tmp_path / "key").write_text(KEY)
    (tmp_path / "key").chmod(0)
    (tmp_path / "folder").mkdir(mode=0o500)
    assert_refused("--api-key-file", str(tmp_path / "key"))
    assert_refused("--model", str(tmp_path / "key"))
    assert_refused("--folder", str(tmp_path / "folder"), "--own-service")
    assert_refused("--folder", str(tmp_path / "folder" / "x"), "--own-service")


def test_what_may_not_be_read_whoever_asks(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    (tmp_path / "model.gguf").write_text("")
    assert_refused("--model", str(tmp_path / "model.gguf"))
    assert_refused("--folder", str(tmp_path), "--own-service")


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        (KEY, 0o644, "others may read it"),
        (KEY, 0o610, "others may read it"),
        ("", 0o600, "at least 16"),
        ("short", 0o600, "at least 16"),
        ("two words 0123456789", 0o600, "one line"),
        (f"{KEY}\n{KEY}", 0o600, "one line"),
        ("schlüssel-0123456789", 0o600, "no ASCII"),
        (KEY * 1000, 0o600, "17000 bytes"),
    ],
    ids=str.split("world group empty short two lines ascii long"),
)
def test_a_key_that_is_none_is_refused_and_not_shown(tmp_path, text, mode, why):
    path = tmp_path / "key"
    path.write_text(text)
    path.chmod(mode)
    told = serve("--api-key-file", str(path)).stderr
    assert why in told
    assert not text or text not in told
    assert_refused("--api-key-file", str(path))


def test_a_port_that_is_taken_is_told_before_anything_is_loaded(started):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = serve("--port", str(port))
    assert result.exit_code == 2
    [line] = result.stderr.splitlines()
    assert line.startswith(f"kvstore-engine: --host 127.0.0.1 --port {port}: Address already in use; remedy")
    assert not started


def test_an_address_that_is_none_of_this_machine(tmp_path):
    (tmp_path / "key").write_text(KEY)
    (tmp_path / "key").chmod(0o600)
    told = serve("--host", "192.0.2.1", "--api-key-file", str(tmp_path / "key"))
    assert told.exit_code == 2
    assert "--host 192.0.2.1 --port 0: Cannot assign requested address; remedy: an address" in told.stderr


def test_what_is_right_is_passed_on_whole(tmp_path, started):
    (tmp_path / "key").write_text(f"{KEY}\n")
    (tmp_path / "key").chmod(0o600)
    (tmp_path / "größe.gguf").write_text("")
    words = ["--model", str(tmp_path / "größe.gguf"), "--dtype", "bf16", "--device", "cuda:1"]
    words += ["--own-service", "--folder", str(tmp_path / "a" / "b"), "--gpu", "9MiB", "--threads", "3"]
    words += ["--api-key-file", str(tmp_path / "key"), "--stop-seconds", "0.5", "--attach-seconds", "0"]
    assert serve(*words, "--body-bytes", "77").exit_code == 0
    assert serve("--kv", "contiguous", "--kv-memory", "2 MiB", "--reserve-tokens", "9").exit_code == 0
    assert serve("--kvstore", "some/where.sock").exit_code == 0
    (options, asked), (contiguous, _), (shared, _) = started
    assert (options.model, options.api_key, options.attach_seconds) == ("größe", KEY, 0.0)
    assert (options.limits.stop_seconds, options.limits.body_bytes) == (0.5, 77)
    assert (asked.dtype, asked.device, asked.threads, asked.is_own) == ("bf16", "cuda:1", 3, True)
    assert asked.folder == tmp_path / "a" / "b"
    assert asked.folder.stat().st_mode & 0o777 == 0o700
    assert (contiguous.kv_bytes, contiguous.reserve_tokens) == (2 << 20, 16)
    assert (shared.kvstore, shared.set_up.name, shared.model) == ("some/where.sock", "full", "smollm2")


def test_a_model_in_the_folder_where_one_stands_has_that_folders_name(tmp_path, monkeypatch, started):
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path / "mine")
    assert serve("--model", ".").exit_code == 0
    [(options, asked)] = started
    assert (options.model, asked.model) == ("mine", ".")


def test_the_names_that_are_known_before_torch_are_those_that_there_are():
    from engine.models import DTYPES

    assert tuple(DTYPES) == DTYPE_NAMES
