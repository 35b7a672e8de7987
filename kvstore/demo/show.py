"""What the one who watches sees: progress while it works, a table in the end."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from kvstore.demo.turns import Report, Turn

__all__ = ["Show"]

# Of a conversation's name, in the table.
NAME_CHARACTERS = 13


class Show:
    """Progress goes to stderr; the table to stdout, or to stderr as well where stdout is for JSON."""

    def __init__(self, *, json: bool) -> None:
        self._errors = Console(stderr=True, highlight=False)
        self._output = self._errors if json else Console(highlight=False)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            console=self._errors,
            transient=True,
        )
        self._task = self._progress.add_task("", total=None)

    @contextmanager
    def progress(self, steps: int) -> Iterator[None]:
        self._progress.update(self._task, total=steps)
        with self._progress:
            yield

    def doing(self, what: str) -> None:
        self._progress.update(self._task, description=what)

    def advance(self, steps: int) -> None:
        self._progress.advance(self._task, steps)

    def say(self, text: str) -> None:
        self._progress.console.print(text, soft_wrap=True)

    def turn_done(self, turn: Turn) -> None:
        swapped = "; swapped out once" if turn.preemptions else ""
        self.say(f"  {turn.id}: {_sources(turn)}; first token {turn.ttft_ms:.0f} ms{swapped}")

    def plain_turn_done(self, turn: Turn) -> None:
        computed = f"{len(turn.prompt)} = {len(turn.prompt)} computed"
        self.say(f"  {turn.id}: {computed}; first token {turn.plain_ttft_ms:.0f} ms; {_verdict(turn)}")

    def report(self, report: Report, journal: Path | None) -> None:
        """`journal`: where what was decided was left, if it was."""
        self._output.print(_table(report))
        self._output.print(_notes(report) + "\n")
        self._output.print(_summary(report))
        self._output.print("\n" + _why(report, journal), soft_wrap=True, markup=False)
        for problem in report.problems():
            self._output.print(f"[bold red]NOT GOOD:[/] {problem}")


def _sources(turn: Turn) -> str:
    sources = {"GPU": turn.from_gpu, "CPU": turn.from_cpu, "disk": turn.from_disk, "computed": turn.computed}
    return f"{len(turn.prompt)} = " + " + ".join(
        f"{count} {name}" for name, count in sources.items() if count
    )


def _table(report: Report) -> Table:
    # Narrow: it has to fit a terminal of 80 columns.
    table = Table(title="Each prompt's tokens by where they came from; first token in ms", box=SIMPLE_HEAD)
    table.padding = (0, 1, 0, 0)
    table.add_column("turn", no_wrap=True)
    for column in ("prompt", "GPU", "CPU", "disk", "computed", "kvstore", "plain"):
        table.add_column(column, justify="right")
    table.add_column("answer")
    sessions = list(dict.fromkeys(turn.session for turn in report.turns))
    for turn in sorted(report.turns, key=lambda each: (sessions.index(each.session), each.number)):
        numbers = (len(turn.prompt), turn.from_gpu, turn.from_cpu, turn.from_disk, turn.computed)
        times = (f"{turn.ttft_ms:.0f}", f"{turn.plain_ttft_ms:.0f}")
        # Zeros only distract.
        shown = (str(number or "") for number in numbers)
        name = f"{_short(turn.session)} {turn.number}{'*' * turn.redone}"
        table.add_row(name, *shown, *times, _verdict(turn))
    return table


def _short(name: str) -> str:
    return name if len(name) <= NAME_CHARACTERS else name[: NAME_CHARACTERS - 1] + "…"


def _notes(report: Report) -> str:
    lines = [
        "kvstore: from the request on, all waiting included (at first three at once).",
        "plain: the prompt alone, nothing cached, no kvstore.",
    ]
    if any(turn.redone for turn in report.turns):
        lines.append("*: done again by another engine: the first was killed in the middle of it.")
    return "\n".join(lines)


def _why(report: Report, journal: Path | None) -> str:
    """How to ask what was decided of these conversations, and why."""
    if journal is None:
        return "To ask afterwards why: --journal FOLDER keeps what was decided (some hundred KiB)."
    sessions = dict.fromkeys(turn.session for turn in report.turns)
    lines = [
        f"  kvstore explain --journal {shlex.quote(str(journal))} --session {shlex.quote(name)}"
        for name in sessions
    ]
    return "\n".join(["Why what came from where, and what it would have cost otherwise:", *lines])


def _verdict(turn: Turn) -> str:
    if turn.is_equal:
        return "equal"
    return "near tie" if turn.is_near_tie else "[bold red]DIFFERS[/]"


def _summary(report: Report) -> str:
    equal = sum(turn.is_equal for turn in report.turns)
    later = [turn for turn in report.turns if turn.number > 1]
    ours, plain = (
        sum(times) / 1000 for times in zip(*((t.ttft_ms, t.plain_ttft_ms) for t in later), strict=True)
    )
    return (
        f"{equal} of {len(report.turns)} answers equal to the plain run; {report.blocks_verified} blocks "
        f"compared before and after their journeys, {report.blocks_wrong} wrong; engine killed: "
        f"{report.engine_kills}, service restarted: {report.service_restarts}. Turns after the first waited "
        f"{ours:.1f} s in all for their first tokens with kvstore, {plain:.1f} s without."
    )
