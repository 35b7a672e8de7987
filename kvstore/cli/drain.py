"""`kvstore drain`: before a restart."""

from typing import Annotated

import typer

from kvstore.client.address import default_address
from kvstore.client.client import Client
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["drain"]

DEADLINE_SECONDS = 10.0
BLOCKS_LEFT = 1


def drain(
    socket: Annotated[
        str, typer.Option(default_factory=default_address, help="The service's socket: a path, or unix:PATH.")
    ],
    timeout: Annotated[float, typer.Option(min=0, max=3600, help="Seconds to write for at most.")] = 60.0,
    stop: Annotated[bool, typer.Option("--stop", help="Stop the service afterwards.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Take new work again instead.")] = False,
) -> None:
    """Take no new work, and write to disk what is worth keeping. Exit status 1: not all is there."""
    with Client(socket, deadline_seconds=DEADLINE_SECONDS) as client:
        has_disk = any(tier.tier == pb.TIER_DISK for tier in client.operator.usage().tiers)
        response = client.operator.drain(timeout, cancel=cancel, stop=stop)
    if cancel:
        typer.echo("The service takes new work again.")
        return
    written, left = response.blocks_written, response.blocks_left
    what = f"{written:,} blocks written" if has_disk else "There is no disk tier to write to"
    typer.echo(f"{what}, {left:,} left" + ("; the service stops." if stop else "."))
    if left:
        raise typer.Exit(BLOCKS_LEFT)
