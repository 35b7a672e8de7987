"""`kvstore health`: for probes; the exit status says it."""

from typing import Annotated

import typer

from kvstore.cli.options import DEFAULT_SOCKET, Socket, operator
from kvstore.client.errors import ClientError

__all__ = ["health"]

NOT_SERVING, UNREACHABLE = 1, 2


def health(
    socket: Socket = DEFAULT_SOCKET,
    timeout: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds to wait for an answer.")] = 5.0,
) -> None:
    """Ask whether the service takes work.

    Exit status 0: it does. 1: it drains or stops. 2: no answer.
    """
    try:
        with operator(socket, deadline_seconds=timeout) as service:
            serving = service.is_serving()
    except ClientError as error:
        typer.echo(f"kvstore: {error}", err=True)
        raise typer.Exit(UNREACHABLE) from None
    typer.echo("SERVING" if serving else "NOT_SERVING")
    if not serving:
        raise typer.Exit(NOT_SERVING)
