"""`kvstore simulate --fuzz`: the store under virtual time, with everything that may go wrong, by seed."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from itertools import count
from queue import SimpleQueue
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from kvstore.cli.progress import ProgressLines
from kvstore.cli.texts import counted

__all__ = ["fuzz"]

SEEDS = 100
# Enough to see what they have in common.
FAILURES_MAX = 5

Outcome = dict[str, Any]


def fuzz(
    *,
    seeds: int | None,
    seed: int,
    steps: int,
    minutes: float | None,
    jobs: int,
    stride: int,
    as_json: bool,
) -> NoReturn:
    """Exit status 0: all passed."""
    if seeds is None and minutes is None:
        seeds = SEEDS
    end = time.monotonic() + minutes * 60 if minutes is not None else float("inf")
    if jobs == 1:
        outcomes = _run(
            range(seed, seed + seeds * stride, stride) if seeds else count(seed, stride), steps, end
        )
    else:
        outcomes = _run_in(jobs, seed, seeds, steps, minutes)
    with closing(outcomes):
        failed = _print_json(outcomes) if as_json else _show(outcomes, seeds, minutes, steps)
    raise typer.Exit(1 if failed else 0)


def _run(seeds: "range | count[int]", steps: int, end: float) -> Generator[Outcome, None, None]:
    # Imported here: with --jobs only the children need it.
    from kvstore.sim.attempts import Passed, attempt_world
    from kvstore.sim.report import report
    from kvstore.sim.shrink import shrink

    for seed in seeds:
        if time.monotonic() >= end:
            return
        result = attempt_world(seed, steps)
        if isinstance(result, Passed):
            yield {"seed": seed, "passed": True, "events": result.events, "reads": result.reads}
        else:
            yield {"seed": seed, "passed": False, "story": report(result, shrink(result))}


def _run_in(
    jobs: int, seed: int, seeds: int | None, steps: int, minutes: float | None
) -> Generator[Outcome, None, None]:
    """The same in processes, each with every so-manieth seed."""
    commands = []
    for job in range(min(jobs, seeds or jobs)):
        command = [sys.executable, "-m", "kvstore.cli.main", "simulate", "--fuzz", "--json"]
        command += ["--seed", str(seed + job), "--stride", str(jobs), "--steps", str(steps)]
        if seeds is not None:
            command += ["--seeds", str(len(range(job, seeds, jobs)))]
        if minutes is not None:
            command += ["--minutes", str(minutes)]
        commands.append(command)
    lines: SimpleQueue[str | None] = SimpleQueue()
    with _started(commands, lines) as children:
        left = len(children)
        while left:
            line = lines.get()
            if line is None:
                left -= 1
            else:
                yield json.loads(line)
        for child in children:
            if child.wait() not in (0, 1):
                _refuse(f"a process has ended with status {child.returncode}")


@contextmanager
def _started(
    commands: list[list[str]], lines: "SimpleQueue[str | None]"
) -> Iterator[list[subprocess.Popen[str]]]:
    """Their standard output comes as lines, and None at the end of each."""
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    readers = [threading.Thread(target=_read, args=(child, lines), daemon=True) for child in children]
    for reader in readers:
        reader.start()
    try:
        yield children
    finally:
        for child in children:
            child.terminate()
        for child, reader in zip(children, readers, strict=True):
            child.wait()
            reader.join()


def _read(child: "subprocess.Popen[str]", lines: "SimpleQueue[str | None]") -> None:
    if child.stdout is not None:
        with child.stdout:
            for line in child.stdout:
                lines.put(line)
    lines.put(None)


def _print_json(outcomes: Iterator[Outcome]) -> int:
    failed = 0
    for outcome in outcomes:
        typer.echo(json.dumps(outcome))
        failed += not outcome["passed"]
        if failed >= FAILURES_MAX:
            break
    return failed


def _show(outcomes: Iterator[Outcome], seeds: int | None, minutes: float | None, steps: int) -> int:
    console = Console()
    failed = done = events = reads = 0
    begin = time.monotonic()
    text = TextColumn("{task.description}")
    said = ProgressLines()
    with Progress(text, BarColumn(), TimeElapsedColumn(), console=console) as progress:
        task = progress.add_task("0 runs", total=seeds or 60 * (minutes or 0))
        for outcome in outcomes:
            done += 1
            events += outcome.get("events", 0)
            reads += outcome.get("reads", 0)
            if not outcome["passed"]:
                failed += 1
                again = f"kvstore simulate --fuzz --seed {outcome['seed']} --seeds 1 --steps {steps}"
                progress.console.print(
                    f"{outcome['story']}\nagain: {again}\n", markup=False, highlight=False, soft_wrap=True
                )
            told = (
                f"{counted(done, 'run')}, {counted(events, 'event')}, {counted(reads, 'block read')}, "
                f"{failed} failed"
            )
            if not console.is_terminal:
                said.say(told)
            progress.update(task, description=told, completed=done if seeds else time.monotonic() - begin)
            if failed >= FAILURES_MAX:
                break
    return failed


def _refuse(message: str) -> NoReturn:
    typer.echo(f"kvstore simulate: {message}", err=True)
    raise typer.Exit(2)
