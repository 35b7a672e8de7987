"""`kvstore drain`: before a restart."""

import json
from typing import Annotated

import typer

from kvstore.cli.options import DEFAULT_SOCKET, Socket, operator
from kvstore.cli.texts import counted
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["drain"]

# To write to disk has a time of its own; this is for what comes before and after.
DEADLINE_SECONDS = 10.0
BLOCKS_LEFT = 1


def drain(
    socket: Socket = DEFAULT_SOCKET,
    timeout: Annotated[float, typer.Option(min=0, max=3600, help="Seconds to write for at most.")] = 60.0,
    stop: Annotated[bool, typer.Option("--stop", help="Stop the service afterwards.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Take new work again instead.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as one JSON object.")] = False,
) -> None:
    """Take no new work, and write to disk what is worth keeping.

    Exit status 0: all is there. 1: not all.
    """
    with operator(socket, deadline_seconds=DEADLINE_SECONDS) as service:
        has_disk = any(tier.tier == pb.TIER_DISK for tier in service.usage().tiers)
        response = service.drain(timeout, cancel=cancel, stop=stop)
    written, left = response.blocks_written, response.blocks_left
    if as_json:
        shown = {"draining": not cancel, "stops": stop, "blocks_written": written, "blocks_left": left}
        typer.echo(json.dumps(shown))
    elif cancel:
        typer.echo("The service takes new work again.")
    else:
        typer.echo(_told(written, left, has_disk=has_disk, stops=stop))
    if left and not cancel:
        raise typer.Exit(BLOCKS_LEFT)


def _told(written: int, left: int, *, has_disk: bool, stops: bool) -> str:
    what = f"{counted(written, 'block')} written" if has_disk else "There is no disk tier to write to"
    return f"{what}, {left:,} left" + ("; the service stops." if stops else ".")
