"""Scenario files: a text, a config, commands, and under each what is expected of it.

    case 1.20
    What failed to load is nobody's hit.

    config, gpu 8, cpu 8

    E1 lookup A0..A3
    ----
    4 blocks (4 CPU)

Blank lines stand between commands; lines that begin with # are remarks. The commands are listed in
tests/scenarios/README.md.
"""

from dataclasses import dataclass
from pathlib import Path

from kvstore.core.errors import CheckFailed
from kvstore.sim.wrong import Wrong
from tests.core.scenario_commands import play
from tests.core.scenario_scene import Config, Scene
from tests.core.scenario_words import Line, ScenarioError

__all__ = ["SEPARATOR", "Scenario", "ScenarioError", "read_scenario"]

SEPARATOR = "----"
WORDS_MIN = 5


@dataclass(frozen=True, slots=True)
class Command:
    """Lines as they stand in the file, remarks and all. `number` is that of the first line, from 1."""

    number: int
    lines: tuple[str, ...]

    @property
    def spoken(self) -> list[tuple[int, str]]:
        """Number and text of all lines but remarks."""
        return [each for each in enumerate(self.lines, self.number) if not each[1].startswith("#")]


@dataclass(frozen=True, slots=True)
class Scenario:
    path: Path
    title: str
    # Title, text and config, as they stand.
    head: tuple[str, ...]
    config: Config
    commands: tuple[Command, ...]

    @property
    def cases(self) -> list[str]:
        """Rows of CASES.md; none for `life …`."""
        kind, *names = self.title.split()
        return names if kind == "case" else []

    def play(self, *, early: bool) -> str:
        """The whole file with what was seen in the place of what was expected."""
        scene = Scene(self.config, early)
        blocks = ["\n".join(self.head)]
        for command in self.commands:
            spoken = command.spoken
            (number, first), *below = spoken
            try:
                seen = play(scene, first, [line for _, line in below])
            except ScenarioError as error:
                number, _ = spoken[min(error.lines_below, len(below))]
                raise ScenarioError(f"{self.path.name}:{number}: {error}") from None
            except (AssertionError, CheckFailed, Wrong) as failure:
                raise AssertionError(f"{self.path.name}:{number}: {first}: {failure}") from failure
            blocks.append("\n".join((*command.lines, SEPARATOR, *seen)))
        return "\n\n".join(blocks) + "\n"


def read_scenario(path: Path) -> Scenario:
    """Raises `ScenarioError` with file and line where the file can't be understood."""
    blocks = _blocks(path)
    # The text of the head may have paragraphs; its last line is the config.
    heads = [index for index, (_, lines) in enumerate(blocks) if lines[-1].startswith("config")]
    number, lines = blocks[0] if blocks else (1, [""])
    title = lines[0]
    if title.split()[:1] not in (["case"], ["life"]) or len(title.split()) < 2:
        raise ScenarioError(f"{path.name}:{number}: begins with `case 1.05` or `life NAME`")
    if not heads:
        raise ScenarioError(f"{path.name}:{number}: has no config line")
    head = _joined(blocks[: heads[0] + 1])
    number, lines = blocks[heads[0]]
    if len(" ".join(head[1:-1]).split()) < WORDS_MIN:
        raise ScenarioError(f"{path.name}:{number}: says nowhere what must hold")
    try:
        config = Config.parse(Line.parse(lines[-1]))
    except ScenarioError as error:
        raise ScenarioError(f"{path.name}:{number + len(lines) - 1}: {error}") from None
    commands = tuple(_command(path, number, lines) for number, lines in blocks[heads[0] + 1 :])
    return Scenario(path, title, head, config, commands)


def _blocks(path: Path) -> list[tuple[int, list[str]]]:
    """Runs of lines that are not blank, and the number of their first."""
    blocks: list[tuple[int, list[str]]] = []
    inside = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip() and not inside:
            blocks.append((number, []))
        inside = bool(line.strip())
        if inside:
            blocks[-1][1].append(line.rstrip())
    return blocks


def _joined(blocks: list[tuple[int, list[str]]]) -> tuple[str, ...]:
    """Lines of blocks, a blank one between any two."""
    lines: list[str] = []
    for _, block in blocks:
        lines += ["", *block] if lines else block
    return tuple(lines)


def _command(path: Path, number: int, lines: list[str]) -> Command:
    end = lines.index(SEPARATOR) if SEPARATOR in lines else len(lines)
    command = Command(number, tuple(lines[:end]))
    if not command.spoken:
        raise ScenarioError(f"{path.name}:{number}: no command stands here")
    for place, (at, line) in enumerate(command.spoken):
        if line.startswith(" ") != (place > 0):
            raise ScenarioError(
                f"{path.name}:{at}: {line.strip()!r}: one command, its operations indented below it, "
                f"then {SEPARATOR}, and a blank line before the next"
            )
    return command
