"""Flags that no message can hold are refused as others are: no traceback, and nobody is asked."""

import pytest
from typer.testing import CliRunner

from kvstore.cli.main import app
from kvstore.core.errors import ConfigInvalid

USAGE = 2
NOT_UTF_8 = "\udcff"


@pytest.mark.parametrize("flag", ["--session", "--tenant", "--namespace", "--engine"])
def test_names_to_forget_that_are_no_utf_8(flag: str) -> None:
    result = CliRunner().invoke(app, ["forget", "--yes", flag, NOT_UTF_8])
    assert isinstance(result.exception, ConfigInvalid)
    assert result.exception.field == flag


@pytest.mark.parametrize(
    ("command", "flag", "value"),
    [
        ("watch", "--engine", NOT_UTF_8),
        ("limits", "--set", f"{NOT_UTF_8}=1GB/s"),
        ("limits", "--high-watermark", f"{NOT_UTF_8}=90%"),
        ("limits", "--low-watermark", f"{NOT_UTF_8}=90%"),
    ],
)
def test_names_that_are_no_utf_8(command: str, flag: str, value: str) -> None:
    result = CliRunner().invoke(app, [command, flag, value])
    assert isinstance(result.exception, ConfigInvalid)
    assert result.exception.field == flag


@pytest.mark.parametrize("seconds", ["nan", "inf", "-inf", "-1", "1e300"])
@pytest.mark.parametrize("words", [("forget", "--yes", "--session", "a", "--wait"), ("drain", "--timeout")])
def test_seconds_that_nobody_waits(words: tuple[str, ...], seconds: str) -> None:
    result = CliRunner().invoke(app, [*words, seconds])
    assert result.exit_code == USAGE
    assert words[-1] in result.output


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "1e300", ""])
def test_seconds_in_which_nobody_answers(seconds: str) -> None:
    result = CliRunner().invoke(app, ["health", "--timeout", seconds])
    assert result.exit_code == USAGE
    assert "--timeout" in result.output


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (("limits", "--set"), "gpu_to_cpu="),
        (("limits", "--set"), "=1GB/s"),
        (("limits", "--set"), "gpu_to_cpu=-5%"),
        (("limits", "--high-watermark"), "=90%"),
        (("limits", "--low-watermark"), "gpu=nan"),
        (("limits", "--low-watermark"), "gpu=120%"),
        (("watch", "--epoch"), "7"),
        (("watch", "--epoch"), "-000000000000001"),
    ],
)
def test_the_whole_of_what_was_typed_is_named(words: tuple[str, ...], value: str) -> None:
    refused = CliRunner().invoke(app, [*words, value]).exception
    assert isinstance(refused, ConfigInvalid)
    assert (refused.field, refused.value) == (words[-1], value)
    assert refused.remedy


def test_a_revision_that_there_never_is() -> None:
    result = CliRunner().invoke(app, ["watch", "--start", str(2**64)])
    assert result.exit_code == USAGE
    assert "--start" in result.output
