"""The `kvstore` program: its commands, and the place where a refusal becomes one line and an exit status."""

import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from kvstore import __version__
from kvstore.client.errors import ClientError
from kvstore.core.errors import KVStoreError

__all__ = ["app", "main"]

EXIT_REFUSED = 2
# Of each command the function of its name in the module of its name, and the first line of its help: so the
# help of the program loads none of them, and a command no other.
COMMANDS = {
    "demo": "Watch conversations whose KV outlives the engine, the GPU's memory and the service.",
    "serve": "Run the service until SIGTERM or Ctrl-C.",
    "status": "Show tiers, links, hits and engines of a running service, and what to do about what is wrong.",
    "health": "Ask whether the service takes work.",
    "explain": "Print what was decided, the latest last: swaps, drops, loads, evictions, writes to disk.",
    "watch": "Print events as they happen: sequences, blocks by tier, pressure, engines that are gone.",
    "limits": "Show, and set, rate limits and watermarks of a running service.",
    "forget": "Forget what is cached, in every tier, disk included.",
    "drain": "Take no new work, and write to disk what is worth keeping.",
    "verify": "Read all that a disk tier holds, and compare it with its checksums.",
    "replay": "Run what a service recorded once more, and compare.",
    "simulate": "Plan before you buy: what tiers of these sizes would make of a recorded trace.",
}
SETTINGS: dict[str, Any] = {
    "add_completion": False,
    # A bug shows Python's own traceback; values of variables may be prompts.
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}


class _Command(TyperCommand):
    """Its name and its line; it becomes the command itself when it is called."""

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        single = typer.Typer(**SETTINGS)
        single.command(self.name)(getattr(import_module(f"kvstore.cli.{self.name}"), self.name or ""))
        return typer.main.get_command(single).make_context(info_name, args, parent, **extra)


class _Commands(TyperGroup):
    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, line in COMMANDS.items():
            self.add_command(_Command(name, callback=None, help=line))


app = typer.Typer(
    name="kvstore",
    cls=_Commands,
    help="Memory management for the KV cache of large language models, as a service of its own.",
    no_args_is_help=True,
    **SETTINGS,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kvstore {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """What stands before the command; the help is the app's own."""


def main() -> None:
    try:
        app()
    except (KVStoreError, ClientError) as error:
        print(f"kvstore: {error}", file=sys.stderr)
        sys.exit(EXIT_REFUSED)


if __name__ == "__main__":
    main()
