"""What `kvstore demo` can't be asked for: status 2 and one line, before torch is loaded."""

import builtins
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from kvstore.cli.main import app
from kvstore.demo.flags import take_folders
from kvstore.demo.show import Show
from kvstore.demo.turns import Report, Turn

NOT_UTF_8 = "\udcff"
WRONG = {
    "--model": ("", " ", "/none", "/dev/null", NOT_UTF_8, "x" * 300),
    "--device": ("", "gpu", "cuda:", "cuda:-1", NOT_UTF_8),
    "--keep": ("", " ", "/proc/zz", "/dev/null", "/etc", NOT_UTF_8, "a?b", "x" * 200),
    "--journal": ("", " ", "/proc/zz", "/dev/null", "/etc", "x" * 300),
}


@pytest.fixture(autouse=True)
def no_torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    real = builtins.__import__

    def load(name: str, *rest: Any) -> Any:
        assert name != "torch" or not rest[0]["__name__"].startswith("kvstore"), "torch is loaded too soon"
        return real(name, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(builtins, "__import__", load)
        yield


def demo(*words: str) -> Result:
    return CliRunner().invoke(app, ["demo", *words])


def assert_refused(flag: str, value: str, *others: str) -> None:
    result = demo(*others, flag, value)
    assert (result.exit_code, result.stdout) == (2, ""), (flag, value, result.exception)
    [line] = result.stderr.splitlines()
    shown = value if value.strip() and value.isprintable() else repr(value)
    assert line.startswith(f"kvstore demo: {flag} {shown}: "), line
    assert "; remedy: " in line


@pytest.mark.parametrize("flag", WRONG)
def test_what_a_flag_can_not_be_is_told_by_name_value_and_remedy(flag: str, tmp_path: Path) -> None:
    for value in WRONG[flag]:
        assert_refused(flag, value)
    (tmp_path / "file").write_text("")
    if flag in ("--keep", "--journal"):
        assert_refused(flag, str(tmp_path))
        assert_refused(flag, str(tmp_path / "file"))
        assert_refused(flag, str(tmp_path / "file" / "x"))


def test_a_journal_in_the_folder_of_all_the_rest(tmp_path: Path) -> None:
    kept = str(tmp_path / "kept")
    assert_refused("--journal", kept, "--keep", kept)
    assert_refused("--journal", f"{kept}/../kept", "--keep", kept)
    inside = f"{kept}/mine"
    assert take_folders(kept, inside) == (Path(kept), Path(inside))


def test_new_folders_are_made_for_nobody_else(tmp_path: Path) -> None:
    kept, journal = take_folders(str(tmp_path / "a" / "b"), str(tmp_path / "c"))
    assert kept is not None
    assert journal is not None
    assert [each.stat().st_mode & 0o777 for each in (kept, journal)] == [0o700, 0o700]
    assert take_folders(None, None) == (None, None)


def test_each_turn_of_the_plain_run_is_told_when_it_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    turn = Turn(session="README.md", number=2, prompt=(1, 2, 3), tokens=[1])
    turn.take_plain_answer({"tokens": [1], "margins": [1.0], "ttft_ms": 1234.5})
    show = Show(json=False)
    show.plain_turn_done(turn)
    turn.plain_tokens = [2]
    show.plain_turn_done(turn)
    assert capsys.readouterr().err.splitlines() == [
        "  README.md 2: 3 = 3 computed; first token 1234 ms; equal",
        "  README.md 2: 3 = 3 computed; first token 1234 ms; DIFFERS",
    ]


def test_the_table_fits_eighty_columns_whatever_a_text_is_called(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    margins: dict[str, Any] = {
        "plain_tokens": [1],
        "plain_margins": [0.0],
        "plain_ttft_ms": 54321.0,
        "ttft_ms": 12345.0,
    }
    turns = [
        Turn(session=name, number=2, prompt=(0,) * 1312, tokens=[2], redone=True, from_gpu=1136, **margins)
        for name in ("README.md", "0013-eviction-by-worth-and-more.md")
    ]
    report = Report(
        turns=turns, blocks_verified=1, blocks_wrong=0, blocks_unknown=0, engine_kills=1, service_restarts=1
    )
    Show(json=False).report(report, None)
    told = capsys.readouterr().out.partition("kvstore: from the request")[0]
    for column in ("prompt", "GPU", "CPU", "disk", "computed", "kvstore", "plain", "answer"):
        assert f" {column} " in told, told
    assert "0013-evictio… 2*" in told
    assert told.count("…") == 1
    assert told.count(" near tie") == 2
