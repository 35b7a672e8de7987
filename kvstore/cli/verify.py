"""`kvstore verify`: a disk tier's folder looked at as a whole, and repaired if asked for."""

import re
from pathlib import Path
from typing import Annotated

import typer
from msgspec.json import encode, format
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from kvstore.cli.progress import ProgressLines
from kvstore.cli.texts import counted
from kvstore.core.errors import DiskInvalid
from kvstore.server.sizes import format_bytes
from kvstore.tiers.disk_verify import Report
from kvstore.tiers.disk_verify import verify as run

__all__ = ["verify"]

GOOD, DAMAGED = 0, 1
# Of more only the number is told; --json has the first thousand.
SHOWN_MAX = 20
# A block's name: namespace and tenant, four bytes each, and its key. --json has it whole.
NAME = re.compile(r"\b[0-9a-f]{16}([0-9a-f]{64})\b")
LONG_HEX = re.compile(r"\b[0-9a-f]{25,}\b")
KEY_DIGITS = 12


def verify(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="Folder of `kvstore serve --disk`; no service may hold it.")
    ],
    repair: Annotated[
        bool, typer.Option("--repair", help="Drop what is damaged, and give its room back.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="The report as JSON, without a progress bar.")] = False,
) -> None:
    """Read all that a disk tier holds, and compare it with its checksums.

    Exit status 0: all is good. 1: damage was found, and with --repair it is gone. 2: it can't be looked at.
    """
    try:
        report = run(path, repair=repair, progress=lambda *_: None) if json else _run_with_bar(path, repair)
    except DiskInvalid as error:
        # What the tier calls by the service's flag is this command's argument.
        raise DiskInvalid(error.message, field="PATH", value=error.value, remedy=error.remedy) from error
    if json:
        typer.echo(format(encode(report)).decode())
    else:
        for line in _lines(report):
            typer.echo(line)
    raise typer.Exit(GOOD if report.is_good else DAMAGED)


def _run_with_bar(path: Path, repair: bool) -> Report:
    # Beside the report, not in it.
    console = Console(stderr=True)
    if not console.is_terminal:
        said = ProgressLines()
        return run(
            path,
            repair=repair,
            progress=lambda done, total: said.say(f"{format_bytes(done)} of {format_bytes(total)} verified"),
        )
    columns = (TextColumn("verifying"), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("verifying", total=None)
        return run(
            path, repair=repair, progress=lambda done, total: bar.update(task, completed=done, total=total)
        )


def _lines(report: Report) -> list[str]:
    lines = [
        f"{report.folder}: {counted(report.blocks_good, 'block')} ({format_bytes(report.bytes_good)}) "
        f"and {counted(report.sessions_good, 'session')} are good"
    ]
    for damage in report.listed[:SHOWN_MAX]:
        lines.append(f"  {damage.kind} {_shortened(damage.what)}: {_shortened(damage.why)}")
    total = sum(report.damages.values())
    if total > SHOWN_MAX:
        lines.append(f"  and {total - SHOWN_MAX} more")
    if report.strange_files:
        lines.append(f"  not kvstore's, and left alone: {', '.join(report.strange_files[:SHOWN_MAX])}")
    if report.damages:
        kinds = ", ".join(f"{count} x {kind}" for kind, count in sorted(report.damages.items()))
        done = "dropped; the rest is as it was" if report.repaired else "`--repair` drops it"
        lines.append(f"damaged: {kinds}: {done}")
    return lines


def _shortened(text: str) -> str:
    """Keys by the digits that `kvstore watch` and `kvstore replay` show them by."""
    text = NAME.sub(lambda name: f"{name[1][:KEY_DIGITS]}…", text)
    return LONG_HEX.sub(lambda digits: f"{digits[0][:KEY_DIGITS]}…", text)
