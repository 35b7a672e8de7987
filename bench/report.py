"""How measurements are told: a row each, with its reference, its goal, and where it was taken.

A sample is the median of one round. What is compared is measured in turns, a round of the one and a round of
the other, since machines are noisy: the ratio is the median over pairs of rounds, which noise that comes and
goes can't shift. Rows are kept in `bench/results/NAME.csv` by `--save`.
"""

import argparse
import csv
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, quantiles

from bench.progress import signs_of_life

__all__ = ["ROOT", "Row", "add_options", "main", "make_row", "tell"]

MISSED = 1

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`spread` is between the quartiles of the samples, `ratio_spread` between those of the ratios.

    Without a reference, or a goal, the fields that speak of it are None.
    """

    name: str
    value: float
    unit: str
    spread: float
    reference: float | None
    ratio: float | None
    ratio_spread: float | None
    goal: str | None
    met: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """Where and when all rows of one run were taken."""

    machine: str
    commit: str
    date: str


def make_row(
    name: str,
    unit: str,
    samples: Sequence[float],
    *,
    reference: Sequence[float] | float | None = None,
    at_most: float | None = None,
    at_least: float | None = None,
    ratio_at_most: float | None = None,
    ratio_at_least: float | None = None,
) -> Row:
    """`reference`: as many samples, taken in turns with `samples`; or one known figure. One goal at most."""
    value = median(samples)
    references = [reference] * len(samples) if isinstance(reference, int | float) else reference
    ratios = [a / b for a, b in zip(samples, references, strict=True)] if references is not None else None
    ratio = median(ratios) if ratios else None
    goal, met = None, None
    if at_most is not None:
        goal, met = f"<= {at_most:g} {unit}".rstrip(), value <= at_most
    elif at_least is not None:
        goal, met = f">= {at_least:g} {unit}".rstrip(), value >= at_least
    elif ratio_at_most is not None and ratio is not None:
        goal, met = f"<= {ratio_at_most:g} x", ratio <= ratio_at_most
    elif ratio_at_least is not None and ratio is not None:
        goal, met = f">= {ratio_at_least:g} x", ratio >= ratio_at_least
    return Row(
        name=name,
        value=value,
        unit=unit,
        spread=_spread(samples),
        reference=median(references) if references is not None else None,
        ratio=ratio,
        ratio_spread=_spread(ratios) if ratios else None,
        goal=goal,
        met=met,
    )


def main(name: str, description: str, measure: Callable[[bool], Iterable[Row]]) -> None:
    """The command line of a benchmark. `measure` is told whether to be quick, and for a look only; its rows
    are printed as they come. Ends the program with status 1 where a row has not met its goal."""
    parser = argparse.ArgumentParser(prog=f"python -m bench.{name}", description=description)
    add_options(parser, name)
    arguments = parser.parse_args()
    tell(name, measure(arguments.quick), arguments)


def add_options(parser: argparse.ArgumentParser, name: str) -> None:
    """What all benchmarks are asked."""
    parser.add_argument("--json", action="store_true", help="print the rows as JSON, one a line")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: for a look, not for a claim")
    parser.add_argument("--save", action="store_true", help=f"append the rows to bench/results/{name}.csv")


def tell(
    name: str,
    rows: Iterable[Row],
    arguments: argparse.Namespace,
    *,
    device: str = "",
    output: Path | None = None,
) -> None:
    """Each row as it comes, and what `add_options` has asked for. Ends the program with status 1 where one
    has not met its goal. `device`: what they were taken on, beside the machine; `output`: all of them as one
    JSON object."""
    taken, told = _taken(device), []
    with signs_of_life(f"bench.{name}"):
        for row in rows:
            told.append(row)
            print(json.dumps(asdict(row) | asdict(taken)) if arguments.json else _told(row), flush=True)
    if not arguments.json:
        print(f"on {taken.machine}, at {taken.commit}, {taken.date}")
    if output is not None:
        output.write_text(json.dumps({"bench": name, **asdict(taken), "rows": [asdict(row) for row in told]}))
    if arguments.save:
        _save(RESULTS / f"{name}.csv", told, taken)
    missed = sum(row.met is False for row in told)
    if missed:
        plural = "goal was" if missed == 1 else "goals were"
        print(f"bench.{name}: {missed} {plural} not met", file=sys.stderr)
        sys.exit(MISSED)


def _spread(samples: Sequence[float]) -> float:
    if len(samples) < 2:
        return 0.0
    low, _, high = quantiles(samples, n=4, method="inclusive")
    return high - low


def _told(row: Row) -> str:
    line = f"{row.name:<62} {row.value:>12,.4g} ±{row.spread / 2:<9,.2g} {row.unit:<9}"
    if row.ratio is not None and row.ratio_spread is not None:
        line += f" {row.ratio:.3f} ±{row.ratio_spread / 2:.3f} x of {row.reference:,.4g}"
    if row.goal is not None:
        line += f"   goal {row.goal}: {'met' if row.met else 'NOT MET'}"
    return line


def _save(path: Path, rows: Sequence[Row], taken: Taken) -> None:
    path.parent.mkdir(exist_ok=True)
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        names = [each.name for each in (*fields(Row), *fields(Taken))]
        writer = csv.DictWriter(file, names, lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerows(asdict(row) | asdict(taken) for row in rows)


def _taken(device: str) -> Taken:
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return Taken(
        machine=", ".join(filter(None, (device, _cpu_model(), f"{os.cpu_count()} cores", _python()))),
        commit=commit.stdout.strip() or "unknown",
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _python() -> str:
    return f"Python {platform.python_version()}"


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()
