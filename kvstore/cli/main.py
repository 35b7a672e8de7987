"""The `kvstore` program: its commands, and the place where a refusal becomes one line and an exit status."""

import sys
from typing import Annotated

import typer

from kvstore import __version__
from kvstore.cli.demo import demo
from kvstore.cli.drain import drain
from kvstore.cli.explain import explain
from kvstore.cli.forget import forget
from kvstore.cli.health import health
from kvstore.cli.limits import limits
from kvstore.cli.replay import replay
from kvstore.cli.serve import serve
from kvstore.cli.simulate import simulate
from kvstore.cli.status import status
from kvstore.cli.verify import verify
from kvstore.cli.watch import watch
from kvstore.client.errors import ClientError
from kvstore.core.errors import KVStoreError

__all__ = ["app", "main"]

app = typer.Typer(
    name="kvstore",
    help="Memory management for the KV cache of large language models, as a service of its own.",
    no_args_is_help=True,
    add_completion=False,
    # A bug shows Python's own traceback; values of variables may be prompts.
    pretty_exceptions_enable=False,
)
app.command()(demo)
app.command()(drain)
app.command()(explain)
app.command()(health)
app.command()(forget)
app.command()(limits)
app.command()(replay)
app.command()(serve)
app.command()(simulate)
app.command()(status)
app.command()(verify)
app.command()(watch)

EXIT_REFUSED = 2


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
