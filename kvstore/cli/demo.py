"""`kvstore demo`: conversations through all tiers, a killed engine, a restarted service, and the proof."""

import json
import signal
from types import FrameType
from typing import Annotated, NoReturn

import typer

__all__ = ["demo"]


def demo(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as one JSON object on the last line.")
    ] = False,
    model: Annotated[
        str,
        typer.Option(
            help="smollm2; tiny: random weights, quicker; a GGUF file, or a folder with safetensors."
        ),
    ] = "smollm2",
    device: Annotated[str, typer.Option(help="cpu, or cuda[:N]: engines and GPU tier on that GPU.")] = "cpu",
    keep: Annotated[
        str | None,
        typer.Option(help="Folder for logs, journal and disk tier, to be kept; it must be empty."),
    ] = None,
    journal: Annotated[
        str | None,
        typer.Option(
            help="Folder for the journal alone, to be kept for `kvstore explain --journal`; it must be empty."
        ),
    ] = None,
) -> None:
    """Watch conversations whose KV outlives the engine, the GPU's memory and the service."""
    # Imported here, as all below: the help needs none of it, and a wrong flag no torch.
    from kvstore.demo.children import DemoError, DemoRefused
    from kvstore.demo.flags import check_asked, take_folders
    from kvstore.demo.show import Show

    try:
        check_asked(model, device)
        kept, recorded = take_folders(keep, journal)
    except DemoRefused as error:
        _refuse(str(error))
    show = Show(json=as_json)
    # It takes seconds, and minutes on a machine that has much else to do.
    show.say("[bold]reading torch and the model's words[/]")
    # Where the engine is not installed it is said so.
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError:
        _refuse(
            "the reference engine is not installed; remedy: in the clone, "
            "make install, or pip install -c constraints.txt -e '.[engine]'"
        )
    from kvstore.demo.run import run_demo

    # As Ctrl-C does: what was started is ended, and what was made is removed.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        report = run_demo(model, show, kept, device, recorded)
    except DemoRefused as error:
        _refuse(str(error))
    except DemoError as error:
        _say(str(error))
        raise typer.Exit(1) from error
    show.report(report, recorded or (kept / "journal" if kept is not None else None))
    if as_json:
        typer.echo(json.dumps(report.to_json()))
    raise typer.Exit(1 if report.problems() else 0)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _refuse(message: str) -> NoReturn:
    _say(message)
    raise typer.Exit(2)


def _say(message: str) -> None:
    typer.echo(f"kvstore demo: {message}", err=True)
