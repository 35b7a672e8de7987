"""Plays every scenario file; with --rewrite-scenarios, writes down what was seen instead."""

import difflib
import re
from pathlib import Path

import pytest

from tests.core.scenarios import Scenario, ScenarioError, read_scenario

FOLDER = Path(__file__).parent.parent / "scenarios"
FILES = sorted(FOLDER.glob("*.txt"))
TABLE_ROW = re.compile(r"^\| (\d\.\d\d) \| (.+) \|$", re.MULTILINE)


def check_scenario(path: Path, *, rewrite: bool = False) -> None:
    """Twice, since no answer may depend on when the bytes of a transfer move."""
    scenario = read_scenario(path)
    seen = scenario.play(early=True)
    assert scenario.play(early=False) == seen, "it matters when bytes move"
    if rewrite:
        path.write_text(seen, encoding="utf-8")
    expected = path.read_text(encoding="utf-8")
    if expected != seen:
        diff = difflib.unified_diff(expected.splitlines(), seen.splitlines(), "expected", "seen", lineterm="")
        pytest.fail("\n".join((f"{path.name} (see --rewrite-scenarios)", *diff)), pytrace=False)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario(path: Path, request: pytest.FixtureRequest) -> None:
    check_scenario(path, rewrite=request.config.getoption("--rewrite-scenarios"))


# ------------------------------------------------------------------------------- coverage


def scenarios() -> list[Scenario]:
    return [read_scenario(path) for path in FILES]


def test_a_file_is_named_by_its_case() -> None:
    for scenario in scenarios():
        stem = scenario.path.stem
        start = "case_" + scenario.cases[0].replace(".", "_") + "_" if scenario.cases else "life_"
        assert stem.startswith(start)
        assert len(stem) > len(start)


def test_the_table_names_the_rows_that_scenarios_cover_and_no_others() -> None:
    table = dict(TABLE_ROW.findall((FOLDER / "README.md").read_text(encoding="utf-8")))
    covered: dict[str, list[str]] = {}
    for scenario in scenarios():
        for case in scenario.cases:
            covered.setdefault(case, []).append(scenario.path.name)
    named = {case: re.findall(r"`(case_\w+\.txt)`", what) for case, what in table.items()}
    assert {case: files for case, files in named.items() if files} == covered


def test_the_table_has_each_row_once_and_in_order() -> None:
    rows = [case for case, _ in TABLE_ROW.findall((FOLDER / "README.md").read_text(encoding="utf-8"))]
    assert rows == sorted(set(rows))
    assert {row[0] for row in rows} == {"1", "2", "3", "4", "5", "6", "9"}


def test_what_the_table_names_is_there() -> None:
    table = (FOLDER / "README.md").read_text(encoding="utf-8")
    for name in re.findall(r"`(\w+\.txt)`", table):
        assert (FOLDER / name).exists()
    for path, test in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", table):
        assert f"def {test}" in (FOLDER.parents[1] / path).read_text(encoding="utf-8")


# ----------------------------------------------------------------------------- the runner

GOOD = """life example
A prompt of four blocks is computed and found again.

config, gpu 8

E1 attach
----
attached

E1 step
  allocate s1 A0..A3
----
s1: OK, resident, table g1 g2 g3 g4
"""


def written(tmp_path: Path, content: str) -> Path:
    path = tmp_path / "example.txt"
    path.write_text(content, encoding="utf-8")
    return path


def test_a_wrong_expectation_fails_with_a_diff_and_is_rewritten_with_the_flag(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD.replace("g1 g2 g3 g4", "g1 g2 g3"))
    with pytest.raises(pytest.fail.Exception) as failure:
        check_scenario(path)
    assert "-s1: OK, resident, table g1 g2 g3\n+s1: OK, resident, table g1 g2 g3 g4" in str(failure.value)
    check_scenario(path, rewrite=True)
    assert path.read_text(encoding="utf-8") == GOOD
    check_scenario(path)


@pytest.mark.parametrize(
    ("old", "new"), [("g4\n", "g4\nok\n"), ("attached\n", ""), ("attached\n", "attached before\n")]
)
def test_a_line_too_many_too_few_or_another_fails(tmp_path: Path, old: str, new: str) -> None:
    with pytest.raises(pytest.fail.Exception):
        check_scenario(written(tmp_path, GOOD.replace(old, new, 1)))


@pytest.mark.parametrize("rewrite", [False, True])
def test_a_wrong_byte_is_never_written_down_as_expected(tmp_path: Path, rewrite: bool) -> None:
    """An engine commits what it never wrote, and somebody reads it."""
    lie = """
E1 step
  commit s1 A0..A3
----
ok

E1 step
  allocate s2 A0..A3 A4:1
----
s2: OK, resident, table g1 g2 g3 g4 g5, 16 tokens cached (16 GPU)

E1 read s2
----
reads A0..A3
"""
    with pytest.raises(AssertionError, match=r"example.txt:25: E1 read s2: block 0 of"):
        check_scenario(written(tmp_path, GOOD + lie), rewrite=rewrite)


@pytest.mark.parametrize(
    ("old", "new", "line", "what"),
    [
        ("life example", "example", 1, "begins with"),
        ("A prompt of four blocks is computed and found again.", "Text.", 4, "what must hold"),
        ("config, gpu 8", "config, gpu many", 4, "gpu is a number"),
        ("config, gpu 8", "config, gpus 8", 4, "'gpus' is not understood"),
        ("config, gpu 8", "gpu 8", 1, "no config line"),
        ("E1 attach", "E1 attacks", 6, "'attacks' is nothing an engine does"),
        ("E1 attach", "attach E1", 6, "'attach' is no command"),
        ("E1 step", "E2 step", 10, "E2 has never attached"),
        ("  allocate", "allocate", 11, "its operations indented"),
        ("allocate s1", "allocate 1", 11, "a sequence is called"),
        ("allocate s1", "grant s1", 11, "'grant' is no operation"),
        ("A0..A3", "A0 A2", 11, "A2 can't stand in place 1"),
        ("A0..A3", "A0:2 A1", 11, "behind a block that is not full"),
        ("A0..A3", "A0..A3, sesion chat", 11, "'sesion' is not understood"),
        ("A0..A3", "some tokens", 11, "a number of tokens"),
        ("A0..A3", "a0", 11, "'a0' is no block"),
    ],
)
def test_what_is_not_understood_is_told_with_file_and_line(
    tmp_path: Path, old: str, new: str, line: int, what: str
) -> None:
    content = GOOD.replace(old, new, 1)
    assert content != GOOD
    with pytest.raises(ScenarioError, match=re.escape(what)) as error:
        check_scenario(written(tmp_path, content))
    assert str(error.value).startswith(f"example.txt:{line}: ")
