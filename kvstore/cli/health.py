"""`kvstore health`: for probes; the exit status says it."""

from typing import Annotated

import typer

from kvstore.client.address import default_address
from kvstore.client.client import Client
from kvstore.client.errors import ClientError

__all__ = ["health"]

NOT_SERVING, UNREACHABLE = 1, 2


def health(
    socket: Annotated[
        str, typer.Option(default_factory=default_address, help="The service's socket: a path, or unix:PATH.")
    ],
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for an answer.")] = 5.0,
) -> None:
    """Ask whether the service takes work. Exit status 0: it does; 1: it drains or stops; 2: no answer."""
    try:
        with Client(socket, deadline_seconds=timeout) as client:
            serving = client.operator.is_serving()
    except ClientError as error:
        typer.echo(f"kvstore: {error}", err=True)
        raise typer.Exit(UNREACHABLE) from None
    typer.echo("SERVING" if serving else "NOT_SERVING")
    if not serving:
        raise typer.Exit(NOT_SERVING)
