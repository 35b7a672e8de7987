"""`kvstore verify`: a disk tier's folder looked at as a whole, and repaired if asked for."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kvstore.tiers.disk_verify import Report

__all__ = ["verify"]

GOOD, DAMAGED = 0, 1
# Of more only the number is told; --json has the first thousand.
SHOWN_MAX = 20


def verify(
    path: Annotated[Path, typer.Argument(help="Folder of `kvstore serve --disk`; no service may hold it.")],
    repair: Annotated[
        bool, typer.Option("--repair", help="Drop what is damaged, and give its room back.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="The report as JSON, without a progress bar.")] = False,
) -> None:
    """Read all that a disk tier holds, and compare it with its checksums.

    Exit status 0: all is good. 1: damage was found, and with --repair it is gone. 2: it can't be looked at.
    """
    # Imported here: the other commands must not load numpy and LMDB.
    from msgspec.json import encode, format

    from kvstore.tiers.disk_verify import verify as run

    if json:
        report = run(path, repair=repair, progress=lambda done, total: None)
        typer.echo(format(encode(report)).decode())
    else:
        report = _run_with_bar(path, repair)
        for line in _lines(report):
            typer.echo(line)
    raise typer.Exit(GOOD if report.is_good else DAMAGED)


def _run_with_bar(path: Path, repair: bool) -> "Report":
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from kvstore.tiers.disk_verify import verify as run

    columns = (TextColumn("verifying"), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    # Beside the report, not in it.
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("verifying", total=None)
        return run(
            path, repair=repair, progress=lambda done, total: bar.update(task, completed=done, total=total)
        )


def _lines(report: "Report") -> list[str]:
    from kvstore.server.sizes import format_bytes

    lines = [
        f"{report.folder}: {report.blocks_good} blocks ({format_bytes(report.bytes_good)}) "
        f"and {report.sessions_good} sessions are good"
    ]
    for damage in report.listed[:SHOWN_MAX]:
        lines.append(f"  {damage.kind} {damage.what}: {damage.why}")
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
