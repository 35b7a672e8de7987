"""Journals of runs whose engines and sessions are hard to tell apart, or to print: explain, and stories."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kvstore.cli.main import app
from kvstore.core.errors import FieldInvalid
from tests.core.caller import Caller
from tests.core.word import leave
from tests.core.world import World, make_store
from tests.observe.helpers import journaled, replay

FIRST, SECOND = (f"00000000-0000-4000-8000-00000000000{number}" for number in (1, 2))


def record(path: Path, engine: int, session: str) -> None:
    """A run in which this engine swaps out one sequence."""
    store = make_store(cpu_frames=16)
    with journaled(store, path, epoch=engine):
        caller = Caller(World(store, 1), engine)
        caller.allocate(1, 8, session=session)
        leave(caller, 1, 8)


def explain(path: Path, *flags: str) -> Result:
    return CliRunner().invoke(app, ["explain", "--journal", str(path), *flags])


def test_a_name_that_engines_of_two_runs_have_is_refused(tmp_path: Path) -> None:
    record(tmp_path, 1, "chat")
    record(tmp_path, 2, "chat")
    for flags in ((), ("--limit", "1")):
        result = explain(tmp_path, "--engine", "00000000", *flags)
        assert isinstance(result.exception, FieldInvalid), result.output
        words = f"engine = 00000000: 2 engines begin so: engines/{FIRST}, engines/{SECOND} (name more of it)"
        assert str(result.exception) == words
    for name in (FIRST, f"engines/{SECOND}"):
        result = explain(tmp_path, "--engine", name, "--json")
        assert (result.exit_code, result.stdout.count("\n")) == (0, 1), result.output
        assert name in result.stdout
    assert explain(tmp_path, "--engine", "ffff").exit_code == 1
    with pytest.raises(FieldInvalid, match="nor the beginning of one"):
        CliRunner().invoke(
            app, ["explain", "--journal", str(tmp_path), "--engine", "x"], catch_exceptions=False
        )


def test_a_name_ends_no_line(tmp_path: Path) -> None:
    record(tmp_path, 1, "a\nb\x1b[31m")
    assert r"(session a\nb\x1b[31m, engine 00000000, tenant a)" in explain(tmp_path).stdout
    story = replay(tmp_path, "--story", "session=a\nb\x1b[31m").stdout
    assert r"session a\nb\x1b[31m" in story
    assert "\x1b" not in story
